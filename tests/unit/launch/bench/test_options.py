"""What `quire bench` takes, and refuses by name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launch.bench.connect import server_of, takes_token_ids
from launch.bench.report import check_place
from launch.bench.serve_options import ServeOptions
from launch.bench.serving import bench_serve
from launch.cli.main import app
from quire.contract.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_rate": 0.0}, "request_rate: must be in (0, inf], got 0.0"),
        (
            {"base_url": "ftp://x"},
            "base_url: must be http://HOST:PORT or https://HOST:PORT, got 'ftp://x'",
        ),
        (
            {"base_url": "127.0.0.1:8000"},
            "base_url: must be http://HOST:PORT or https://HOST:PORT, got '127.0.0.1:8000'",
        ),
        (
            {"base_url": "http://a:x", "backend": "openai-chat"},
            "base_url: must be http://HOST:PORT or https://HOST:PORT, got 'http://a:x'",
        ),
        ({"host": "a:1"}, "host: must be a name or an address without a port, got 'a:1'"),
        ({"burstiness": float("nan")}, "burstiness: must be in (0, inf], got nan"),
        ({"num_prompts": 0}, "num_prompts: must be in [1, 10000000], got 0"),
        ({"max_concurrency": 0}, "max_concurrency: must be in [1, 10000000], got 0"),
        ({"random_range_ratio": 1.0}, "random_range_ratio: must be in [0, 1), got 1.0"),
        ({"custom_output_len": 0}, "custom_output_len: must be at least 1, or -1, got 0"),
        (
            {"percentile_metrics": "ttft,tbt"},
            "percentile_metrics: must be of ttft, tpot, itl, e2el, got 'tbt'",
        ),
        ({"metric_percentiles": "99,101"}, "metric_percentiles: must be in [0, 100], got '101'"),
        ({"metric_percentiles": "p99"}, "metric_percentiles: must be in [0, 100], got 'p99'"),
        (
            {"goodput": ("itl:5",)},
            "goodput: must be METRIC:MS with a metric of ttft, tpot, e2el, got 'itl:5'",
        ),
        (
            {"goodput": ("ttft:-5",)},
            "goodput: must be METRIC:MS with a metric of ttft, tpot, e2el, got 'ttft:-5'",
        ),
        ({"extra_body": "[]"}, "extra_body: must be a JSON object, got []"),
        ({"extra_body": "{"}, "extra_body: must be a JSON object, got {"),
        ({"header": ("a",)}, "header: must be NAME=VALUE, got 'a'"),
        ({"metadata": ("=a",)}, "metadata: must be NAME=VALUE, got '=a'"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0},
            "ramp_up_strategy: must be given with ramp_up_start_rps and ramp_up_end_rps, "
            "got linear with 1.0 and None",
        ),
        (
            {"ramp_up_end_rps": 1.0},
            "ramp_up_strategy: must be given with ramp_up_start_rps and ramp_up_end_rps, "
            "got none with None and 1.0",
        ),
        (
            {
                "ramp_up_strategy": "linear",
                "ramp_up_start_rps": 1.0,
                "ramp_up_end_rps": 2.0,
                "request_rate": 3.0,
            },
            "request_rate: must not be given with ramp_up_strategy, got 3.0",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeOptions(**options)
    assert caught.value.message == message


def test_random_prompts_are_answered_past_the_end_of_text() -> None:
    assert ServeOptions().ignores_eos
    assert not ServeOptions(dataset_name="prefix_repetition").ignores_eos
    assert ServeOptions(dataset_name="prefix_repetition", ignore_eos=True).ignores_eos


def test_a_server_is_named_in_any_of_three_ways() -> None:
    assert server_of(ServeOptions()) == "http://127.0.0.1:8000"
    assert server_of(ServeOptions(host="::1", port=1)) == "http://[::1]:1"
    assert server_of(ServeOptions(tls_dir="certs")) == "https://127.0.0.1:8000"
    assert server_of(ServeOptions(base_url="https://a/b")) == "https://a/b"
    assert server_of(ServeOptions(backend="quire")) == "127.0.0.1:50051"
    assert server_of(ServeOptions(backend="quire", base_url="a:1,b:1")) == "a:1,b:1"


def test_token_ids_go_to_those_who_take_them() -> None:
    takers = {"openai": True, "vllm": True, "quire": True}
    takers |= {"openai-chat": False, "openai-responses": False}
    for backend, takes in takers.items():
        assert takes_token_ids(ServeOptions(backend=backend)) == takes
        assert not takes_token_ids(ServeOptions(backend=backend, prompts_as_text=True))


def test_several_values_behind_a_flag_are_all_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[ServeOptions, str | None]] = []

    def bench_serve(options: ServeOptions, api_key: str | None) -> bool:
        seen.append((options, api_key))
        return True

    monkeypatch.setattr("launch.bench.serving.bench_serve", bench_serve)
    arguments = ["--goodput", "ttft:200", "tpot:50", "--metadata", "a=1", "b=2", "--metadata=c=3"]
    arguments += ["--header", "x-a=1", "--save-result", "--request-rate", "inf", "--port", "80"]
    arguments += ["--extra-body", json.dumps({"top_a": 1}), "--plot", str(tmp_path / "run.svg")]
    runner = CliRunner(env={"OPENAI_API_KEY": "secret"})
    result = runner.invoke(app, ["bench", "serve", *arguments])
    assert result.exit_code == 0, result.output
    [(options, api_key)] = seen
    assert options.good == {"ttft": 200.0, "tpot": 50.0}
    assert options.notes == {"a": "1", "b": "2", "c": "3"}
    assert options.headers == {"x-a": "1"}
    assert options.more_fields == {"top_a": 1}
    assert (options.save_result, options.port, api_key) == (True, 80, "secret")
    stray = runner.invoke(app, ["bench", "serve", "--save-result", "stray"])
    assert stray.exit_code == 2


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_sent() -> None:
    result = CliRunner().invoke(app, ["bench", "serve", "--port", "1", "--plot", "run.txt"])
    assert result.exit_code == 1
    assert result.stderr == "error: --plot: must end in .svg, .png or .pdf, got run.txt\n"


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_a_place_that_cannot_be_written_is_refused_before_a_cluster_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.bench.offline.LLM", None)
    path = tmp_path / "none" / "x.json"
    result = CliRunner().invoke(app, ["bench", command, "--output-json", str(path)])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"error: output_json: must be a file that can be written, got {path}: "
        "No such file or directory"
    )


@pytest.mark.parametrize("name", ["result_filename", "result_dir", "plot"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sent(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    places = {"result_filename": str(tmp_path), "result_dir": tmp_path / "file", "plot": tmp_path}
    place: dict[str, Any] = {name: places[name]}
    options = ServeOptions(port=1, save_result=name != "plot", **place)
    what = "directory that can be made" if name == "result_dir" else "file that can be written"
    message = f"{name}: must be a {what}, got {places[name]}: "
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        bench_serve(options, None)


def test_looking_at_a_place_leaves_nothing_there(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("kept")
    check_place(ServeOptions(save_result=True, result_dir=tmp_path))
    check_place(ServeOptions(append_result=True, result_dir=tmp_path, result_filename="there"))
    check_place(ServeOptions(plot=tmp_path / "a.svg"))
    assert [each.read_text() for each in tmp_path.iterdir()] == ["kept"]
