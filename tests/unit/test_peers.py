"""What bench/peers computes: requests, figures, the roof, reports."""

import itertools
from pathlib import Path

import gguf
import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from bench.guard import fallen
from bench.peers import record, report
from bench.peers.adapters.gguf_model import gguf_name, write_gguf
from bench.peers.environments import OURS, missing, recipes
from bench.peers.probes import Probe
from bench.peers.record import Key, Results, Row
from bench.peers.shapes import SHAPES, Shape
from bench.peers.statistics import Figures, figures, medians, percentile, roof_seconds
from bench.peers.workloads import PACES, WORKLOADS, Pace, Request, warm_up
from launch.cluster.config import embedded_model
from quire.gguf_tokenizer import load_gguf_tokenizer

PACE = Pace(1.0, ttft_s=0.5, tpot_s=0.1)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("quick", [False, True])
def test_rounds_have_the_same_lengths_and_times_but_other_prompts(name: str, quick: bool) -> None:
    make = WORKLOADS[name].requests
    rounds = [make(seed, PACE, quick) for seed in (1, 2)]
    lengths = [
        [(len(each.prompt), each.max_tokens, each.arrival_s) for each in requests]
        for requests in rounds
    ]
    assert lengths[0] == lengths[1]
    assert rounds[0] == make(1, PACE, quick)
    prompts = [each.prompt for each in itertools.chain(*rounds, warm_up())]
    for prompt, other in itertools.combinations(prompts, 2):
        assert prompt[-8:] != other[-8:]
    # Only what is shared on purpose begins alike.
    firsts = {tuple(prompt[:8]) for prompt in prompts}
    assert len(firsts) == len(prompts) - (0 if name != "prefix" else 2 * (len(rounds[0]) - 1))


def test_workloads_are_as_their_titles_say() -> None:
    sizes = {name: [*each.requests(1, PACES["125M"], False)] for name, each in WORKLOADS.items()}
    assert [(len(each.prompt), each.max_tokens) for each in sizes["single"]] == [(128, 128)]
    assert len(sizes["mix"]) == 64
    assert all(
        8 <= len(each.prompt) <= 1024 and 8 <= each.max_tokens <= 512 for each in sizes["mix"]
    )
    shared = sizes["prefix"]
    assert len(shared) == 32
    assert all(each.prompt[:512] == shared[0].prompt[:512] for each in shared)
    assert {(len(each.prompt), each.max_tokens) for each in shared} == {(544, 64)}
    arrivals = [each.arrival_s for each in sizes["poisson"]]
    assert len(arrivals) == 64
    assert arrivals == sorted(arrivals)
    mean = arrivals[-1] / 63
    assert 0.6 / PACES["125M"].requests_per_s < mean < 1.6 / PACES["125M"].requests_per_s
    assert [(len(each.prompt), each.max_tokens) for each in sizes["long"]] == [(7936, 128)]


def test_figures_of_a_run() -> None:
    requests = [Request([1], 3), Request([1], 2, arrival_s=1.0), Request([1], 1, arrival_s=1.0)]
    times = [[0.5, 0.6, 0.7], [1.2, 1.5], [2.0]]
    run = figures(requests, times, PACE)
    assert run.seconds == 2.0
    assert run.tokens_per_s == 3.0
    assert run.ttft_p50 == 0.5
    assert run.ttft_p90 == pytest.approx(0.9)
    assert run.tpot_p50 == pytest.approx(0.1)
    # The second is too slow after its first token, the third before it.
    assert run.goodput == 0.5


def test_an_engine_that_sends_another_number_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens: must be 3, got 2"):
        figures([Request([1], 3)], [[0.1, 0.2]], PACE)


def test_percentiles_lie_between_values() -> None:
    assert percentile([4.0, 0.0], 50) == 2.0
    assert percentile([1.0], 99) == 1.0


def _figures(value: float) -> Figures:
    return Figures(*[value] * 9)


def test_medians_are_taken_of_each_figure() -> None:
    assert medians(map(_figures, (3.0, 1.0, 2.0))) == _figures(2.0)


def test_weights_of_the_shapes_are_those_of_the_files() -> None:
    assert SHAPES["125M"].dense_weights == 100_073_472
    assert SHAPES["1.1B"].dense_weights == 1_034_420_224


TINY = Shape("tiny", hidden=64, layers=1, heads=2, kv_heads=1, intermediate=64)


def test_roof_of_one_stream_is_bytes_over_bandwidth() -> None:
    request = Request([1] * 4, 3)
    seconds = roof_seconds([request], TINY, 2.0, 2.0, 1e9, 1e30)
    # Steps read the weights, and the keys and values of 4, 5 and 6 tokens.
    moved = 3 * TINY.dense_weights * 2 + (4 + 5 + 6) * TINY.kv_elements * 2
    assert seconds == pytest.approx(moved / 1e9)


def test_roof_of_a_long_prompt_is_operations_over_their_rate() -> None:
    request = Request([1] * 5000, 1)
    seconds = roof_seconds([request], TINY, 2.0, 2.0, 1e30, 1e12)
    scores = 4 * 2 * 64 * (2048 * 2048 + 2048 * 4096 + 904 * 5000)
    assert seconds == pytest.approx((2 * 5000 * TINY.dense_weights + scores) / 1e12)


def test_roof_computes_a_shared_prefix_once() -> None:
    def seconds(requests: list[Request]) -> float:
        return roof_seconds(requests, TINY, 2.0, 2.0, 1e30, 1e12)

    shared = [Request([1] * 100 + [index], 1) for index in range(4)]
    other = [Request([index] * 101, 1) for index in range(4)]
    assert seconds(shared) < 0.3 * seconds(other)


def _results() -> Results:
    def rows(seconds: float) -> list[Row]:
        return [Row(_figures(seconds), Probe(2e10, 3e11, 0.5), 1.2, 2**30)] * 3

    return Results(
        "a processor, 2 cores",
        2,
        False,
        {"quire": "1", "llama-cpp": "2"},
        {
            Key("llama-cpp", "125M", "bfloat16", "mix"): rows(3.0),
            Key("quire", "125M", "bfloat16", "mix"): rows(1.5),
            Key("quire", "125M", "bfloat16", "poisson"): rows(0.05),
        },
        {Key("transformers", "125M", "bfloat16", "mix"): "no such weights\nsecond line"},
    )


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    record.save(_results(), tmp_path / "results.json")
    assert record.load(tmp_path / "results.json") == _results()
    assert "not measured: no such weights" in "\n".join(record.lines(_results()))


def test_results_of_two_runs_are_put_together() -> None:
    key = Key("transformers", "125M", "bfloat16", "mix")
    later = Results("a processor, 2 cores", 2, False, {"quire": "3"}, {key: []}, {})
    both = record.merged(_results(), later)
    assert both.versions == {"quire": "3", "llama-cpp": "2"}
    assert set(both.rows) == {*_results().rows, key}
    assert both.missing == {}
    lost = Key("quire", "125M", "bfloat16", "mix")
    again = Results("a processor, 2 cores", 2, False, missing={lost: "it failed"})
    both = record.merged(_results(), again)
    assert lost not in both.rows
    assert both.missing[lost] == "it failed"
    with pytest.raises(ValueError, match="processor, threads, quick: must be"):
        record.merged(_results(), Results("another", 2, False))


def test_a_time_beside_the_best_peers_is_a_speed() -> None:
    rows = {
        Key(engine, "125M", "bfloat16", "single"): [
            Row(_figures(seconds), Probe(2e10, 3e11, 0.5), 1.2, 2**30)
        ]
        for engine, seconds in (("quire", 0.5), ("llama-cpp", 1.0), ("vllm-cpu", 2.0))
    }
    results = Results("a processor, 2 cores", 2, False, {}, rows)
    assert report.beside_best(results, "125M", "bfloat16", "single") == "2.00 (llama-cpp)"


def test_the_report_replaces_its_section_and_draws_the_same_bytes(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "peers-a-processor-2-cores.svg"
    mine = "<!-- a processor, 2 cores -->\nold\n<!-- /a processor, 2 cores -->\n"
    page.write_text(f"before\n{report.BEGIN}of another\n{mine}{report.END}after\n")
    report.write(_results(), page, tmp_path)
    text, drawn = page.read_text(), picture.read_bytes()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "of another" in text
    assert text.index("| quire | 1.5 | 1,500 | 1,500 | 80% | 1.0 |") < text.index("| llama-cpp |")
    assert "| quire | 0.05 | 50.0 / 50.0 / 50.0 | 50.0 / 50.0 / 50.0 | 1.0 |" in text
    assert "Not measured, transformers: no such weights." in text
    tables = text.count("| engine |")
    assert tables == 2
    # Tokens/s over the best peer's; nobody else was measured under arrivals.
    assert "| 125M, bfloat16 |  | 0.50 (llama-cpp) |  |  |  |" in text
    # In two marks, above, on each table and on the picture.
    assert text.count("a processor, 2 cores") == tables + 6
    report.write(_results(), page, tmp_path)
    assert page.read_text() == text
    assert picture.read_bytes() == drawn
    assert b"a processor, 2 cores" in drawn


def test_a_processor_that_is_new_to_a_page_gets_a_section(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{report.BEGIN}of another\n{report.END}after\n")
    report.write(_results(), page, tmp_path)
    text = page.read_text()
    assert text.startswith(f"{report.BEGIN}of another\n<!-- a processor, 2 cores -->")
    assert text.endswith(f"{report.END}after\n")


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place")
    with pytest.raises(ValueError, match="page: must have"):
        report.write(_results(), page, tmp_path)


def test_the_guard_names_what_has_fallen_or_gone() -> None:
    recorded = {"steady": 1.0, "noisy": 1.0, "fallen": 1.0, "gone": 0.5}
    lines = fallen(recorded, {"steady": 1.2, "noisy": 0.9, "fallen": 0.7, "new": 0.1})
    assert [line.split(":")[0] for line in lines] == ["fallen", "gone"]
    assert lines[0] == "fallen: must be at least 0.80, got 0.70"


def test_every_engine_pins_its_versions_and_has_an_adapter() -> None:
    assert missing(OURS) == ""
    for engine, recipe in recipes().items():
        assert all("==" in each for each in recipe["packages"])
        adapter = f"bench/peers/adapters/{engine.replace('-', '_')}.py"
        assert (Path(__file__).parents[2] / adapter).is_file()


def test_a_gguf_file_with_text_has_the_tokens_and_weights_of_its_model(tmp_path: Path) -> None:
    model, path = embedded_model(), tmp_path / "model.gguf"
    write_gguf(model, path, "bfloat16", with_text=True)
    text = "def f(x):  # naïve\n\treturn [each for each in x]<|endoftext|>"
    own = AutoTokenizer.from_pretrained(model)
    assert load_gguf_tokenizer(path)(text).input_ids == own(text).input_ids
    with safe_open(model / "model.safetensors", "pt") as weights:
        expected = {gguf_name(name) for name in weights.keys()}  # noqa: SIM118 - not a mapping
    assert {each.name for each in gguf.GGUFReader(path).tensors} == expected
