"""The result's keys, the table, and where it is written."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from launch.bench.datasets import Sample
from launch.bench.load import Run
from launch.bench.metrics import measure
from launch.bench.report import percentile_word, remarks_on, result_of, result_path, save, table_of
from launch.bench.serve_options import ServeOptions
from tests.unit.launch.bench.outcomes import outcome

NOW = datetime(2026, 11, 24, 9, 30, 5)
# What `vllm bench serve` writes, of a run that generates text.
KEYS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
    *("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed"),
    *("total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
    *("output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *("mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms"),
    *("mean_tpot_ms", "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms"),
    *("mean_itl_ms", "median_itl_ms", "std_itl_ms", "p99_itl_ms"),
}
OUR_KEYS = {"client_cpu_utilization"}
DETAILS = {
    *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"),
    *("generated_texts", "errors"),
}
OUTCOMES = [
    outcome(0.0, [1.0, 1.5, 2.0], num_tokens=3),
    outcome(1.0, [2.0, 2.1], num_tokens=2),
    outcome(1.0, [], error="HTTP 500: broken"),
]
SAMPLES = [Sample("a", 10, 3)] * 3


def made(client_cpu: float = 0.4, **options: Any) -> tuple[ServeOptions, Run, dict[str, Any]]:
    asked = ServeOptions(num_prompts=3, **options)
    run = Run(OUTCOMES, 2.0, client_cpu)
    metrics = measure(run.outcomes, run.duration, None, asked.good)
    return asked, run, result_of(asked, "org/model", "org/model", run, metrics, NOW)


def test_a_result_has_the_keys_of_vllm() -> None:
    _, _, result = made()
    assert set(result) == KEYS | OUR_KEYS
    assert json.loads(json.dumps(result)) == result
    expected = {
        "date": "20261124-093005",
        "backend": "openai",
        "request_rate": "inf",
        "max_concurrency": None,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 20,
        "total_output_tokens": 5,
        "request_throughput": 1.0,
        "request_goodput": None,
        "output_throughput": 2.5,
        "total_token_throughput": 12.5,
        "client_cpu_utilization": 0.2,
        "mean_ttft_ms": 1000.0,
        "median_tpot_ms": pytest.approx(300.0),
    }
    assert {name: result[name] for name in expected} == expected


def test_details_are_of_each_request() -> None:
    _, _, result = made(save_detailed=True)
    assert set(result) == KEYS | OUR_KEYS | DETAILS
    assert {len(result[name]) for name in DETAILS} == {3}
    assert result["errors"] == ["", "", "HTTP 500: broken"]
    assert result["output_lens"] == [3, 2, 0]
    assert result["itls"][0] == [0.5, 0.5]
    assert result["generated_texts"] == ["aaa", "aa", ""]


def test_metrics_and_percentiles_are_those_that_were_asked_for() -> None:
    _, _, result = made(percentile_metrics="e2el,ttft", metric_percentiles="50,99.9")
    assert {name for name in result if name.endswith("_ms")} == {
        f"{each}_{metric}_ms"
        for metric in ("e2el", "ttft")
        for each in ("mean", "median", "std", "p50", "p99.9")
    }


def test_notes_goodput_and_a_ramp_are_in_the_result() -> None:
    _, _, result = made(
        metadata=("version=1 tp=2", "note=a"),
        goodput=("ttft:1000", "e2el:1500"),
        ramp_up_strategy="linear",
        ramp_up_start_rps=1.0,
        ramp_up_end_rps=8.0,
        label="mine",
    )
    assert (result["version"], result["tp"], result["note"]) == ("1", "2", "a")
    assert result["request_goodput"] == 0.5
    assert (result["ramp_up_strategy"], result["ramp_up_end_rps"]) == ("linear", 8.0)
    assert result["label"] == "mine"


def test_the_table_has_what_the_result_has() -> None:
    options, _, result = made(request_rate=4.0, max_concurrency=2, goodput=("ttft:1000",))
    lines = list(table_of(options, result))
    rows = dict(line.rsplit(None, 1) for line in lines if ": " in line)
    assert rows["Successful requests:"] == "2"
    assert rows["Failed requests:"] == "1"
    assert rows["Maximum request concurrency:"] == "2"
    assert rows["Request goodput (req/s):"] == "1.00"
    assert rows["Output token throughput (tok/s):"] == "2.50"
    assert rows["Mean TTFT (ms):"] == "1000.00"
    assert rows["P99 ITL (ms):"] == f"{result['p99_itl_ms']:.2f}"
    assert lines[-1] == "=" * 50


def test_what_spoils_a_measurement_is_said() -> None:
    options, run, _ = made(client_cpu=1.8)
    metrics = measure(run.outcomes, run.duration, None, {})
    busy, short, failed, error = remarks_on(options, SAMPLES, run, metrics)
    assert busy.startswith("warning: this client took 90% of a core")
    assert short == "warning: 1 answers have fewer tokens than were asked for"
    assert (failed, error) == ("1 requests failed; the first errors:", "  HTTP 500: broken")
    calm, run, _ = made(dataset_name="prefix_repetition")
    assert len(list(remarks_on(calm, SAMPLES, run, metrics))) == 2


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "openai-infqps-model-20261124-093005.json"),
        (
            {"request_rate": 2.5, "max_concurrency": 8, "label": "mine"},
            "mine-2.5qps-concurrency8-model-20261124-093005.json",
        ),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0},
            "openai-ramp-up-linear-1qps-8qps-model-20261124-093005.json",
        ),
        ({"result_filename": "mine.json", "result_dir": Path("results")}, "results/mine.json"),
    ],
)
def test_a_file_is_named_by_the_run(options: dict[str, Any], name: str) -> None:
    assert result_path(ServeOptions(**options), "org/model", NOW) == Path(name)


def test_results_are_appended_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "made" / "results.json"
    for options, count in (({}, 1), ({"append_result": True}, 2), ({"save_result": True}, 1)):
        asked, _, result = made(**options)
        save(asked, result, path)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [result] * count


def test_percentiles_are_written_with_all_their_digits() -> None:
    words = list(map(percentile_word, (50.0, 99.0, 99.9, 99.99999, 100.0)))
    assert words == ["p50", "p99", "p99.9", "p99.99999", "p100"]
