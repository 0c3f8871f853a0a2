"""`quire bench` as a user runs it, against real clusters and a server that fails."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.supervisor import Cluster
from tests.e2e.admin_ports import MODEL, scrape
from tests.e2e.conftest import SharedClusters


def bench(
    command: str, *arguments: str | Path, expected: int = 0
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "launch.cli.main", "bench", command, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"COLUMNS": "120"},
    )
    assert result.returncode == expected, result.stdout + result.stderr
    return result


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0, admin_port=0)


def counted(cluster: Cluster) -> dict[str, float]:
    """What the router has counted."""
    page = asyncio.run(scrape(cluster, "router"))
    names = {
        "requests": ("quire_router_requests_total", {"outcome": "finished"}),
        "input": ("quire_router_prompt_tokens_total", {}),
        "output": ("quire_router_output_tokens_total", {}),
    }
    found = {}
    for key, (name, labels) in names.items():
        try:
            found[key] = page(name, model=MODEL, **labels)
        except KeyError:  # nothing yet
            found[key] = 0.0
    return found


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "openai-responses", "quire"])
def test_tokens_are_those_that_the_server_counted(
    cluster: Cluster, backend: str, tmp_path: Path
) -> None:
    before = counted(cluster)
    path, picture = tmp_path / "results" / "run.json", tmp_path / "run.svg"
    server = cluster.router.address
    if backend != "quire":
        server = f"http://{cluster.router.http_address}"
    result = bench(
        "serve",
        *("--backend", backend, "--base-url", server, "--num-prompts", "12"),
        *("--random-input-len", "40", "--random-output-len", "12", "--random-range-ratio", "0.5"),
        *("--request-rate", "100", "--max-concurrency", "5", "--temperature", "0"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--goodput", "ttft:600000", "tpot:60000"),
        *("--save-result", "--save-detailed", "--result-dir", path.parent),
        *("--result-filename", path.name, "--metadata", "note=a", "--plot", picture),
    )
    found = json.loads(path.read_text())
    after = counted(cluster)
    assert found["completed"] == after["requests"] - before["requests"] == 12
    assert found["failed"] == 0
    assert found["total_input_tokens"] == after["input"] - before["input"]
    assert found["total_output_tokens"] == after["output"] - before["output"]
    assert found["total_output_tokens"] == sum(found["output_lens"])
    assert found["total_input_tokens"] == sum(found["input_lens"])
    assert (found["model_id"], found["tokenizer_id"], found["note"]) == (MODEL, MODEL, "a")
    assert found["max_concurrent_requests"] <= 5
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    if backend in ("openai", "quire"):  # no template comes around the prompt
        assert all(20 <= each <= 60 for each in found["input_lens"])
    # Every answer has its length, and every token but the first a time since the one before.
    assert all(6 <= each <= 18 for each in found["output_lens"])
    assert [len(each) + 1 for each in found["itls"]] == found["output_lens"]
    for ttft, itls, latency in zip(found["ttfts"], found["itls"], found["latencies"], strict=True):
        assert 0 < ttft <= latency
        assert ttft + sum(itls) <= latency + 1e-6
    assert all(found["generated_texts"])
    assert set(found["errors"]) == {""}
    assert (
        f"Total generated tokens:                  {found['total_output_tokens']}" in result.stdout
    )
    assert f"P99 E2EL (ms):                           {found['p99_e2el_ms']:.2f}" in result.stdout
    assert "<svg" in picture.read_text()


def test_a_run_of_shared_prefixes_is_written_again_and_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "runs.json"
    for _ in range(2):
        bench(
            "serve",
            *("--base-url", f"http://{cluster.router.http_address}", "--num-prompts", "6"),
            *("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "32"),
            *("--prefix-repetition-suffix-len", "8", "--prefix-repetition-num-prefixes", "2"),
            *("--output-len", "3", "--ignore-eos", "--num-warmups", "2"),
            *("--ready-check-timeout-sec", "60", "--append-result", "--disable-tqdm"),
            *("--result-filename", path),
        )
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    for run in runs:
        assert (run["completed"], run["total_input_tokens"]) == (6, 240)
        assert run["total_output_tokens"] == 18


def test_a_model_that_is_not_on_this_machine_needs_no_tokenizer(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    result = bench(
        "serve",
        *("--base-url", f"http://{cluster.router.http_address}", "--model", "nobody/elsewhere"),
        *("--served-model-name", MODEL, "--num-prompts", "4", "--random-input-len", "40"),
        *("--random-output-len", "6", "--result-filename", path, "--save-result"),
    )
    assert "tokenizer: nobody/elsewhere is not on this machine" in result.stderr
    found = json.loads(path.read_text())
    assert (found["completed"], found["tokenizer_id"]) == (4, None)
    # As the server counts them.
    assert found["total_output_tokens"] == 24
    assert 120 <= found["total_input_tokens"] <= 200


ENGINE = ("--num-threads", "1", "--kv-cache-gib", "0.03125")


def test_throughput_counts_the_tokens_of_all_outputs(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = bench(
        "throughput",
        *("--num-prompts", "6", "--input-len", "20", "--output-len", "5", "--n", "2"),
        *(*ENGINE, "--output-json", path),
    )
    found = json.loads(path.read_text())
    assert (found["total_prompt_tokens"], found["total_output_tokens"]) == (120, 60)
    assert (found["num_requests"], found["total_num_tokens"]) == (6, 180)
    assert found["tokens_per_second"] * found["elapsed_time"] == pytest.approx(180)
    assert found["requests_per_second"] * found["elapsed_time"] == pytest.approx(6)
    assert f"{found['output_tokens_per_second']:.2f} output tokens/s" in result.stdout
    refused = bench("throughput", "--num-prompts", "1", *ENGINE, expected=1)
    assert refused.stderr == (
        "error: input_len, output_len: must be at most 1,024 tokens together, which is "
        "max_model_len, got 1,152\n"
    )


@pytest.mark.parametrize("search", [(), ("--use-beam-search", "--n", "2")])
def test_latency_is_of_whole_batches(search: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = bench(
        "latency",
        *("--batch-size", "3", "--input-len", "8", "--output-len", "4", *search),
        *("--num-iters-warmup", "1", "--num-iters", "5", *ENGINE, "--output-json", path),
    )
    found = json.loads(path.read_text())
    assert list(found) == ["avg_latency", "std_latency", "latencies", "percentiles"]
    assert len(found["latencies"]) == 5
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 5)
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert found["percentiles"]["50"] == sorted(found["latencies"])[2]
    assert f"Avg latency: {found['avg_latency']:.4f} seconds" in result.stdout


class FailingServer:
    """Answers completions of three tokens; each third request it fails, in one way or another."""

    CHUNKS = (
        b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n',
        b'data: {"choices": [{"index": 0, "text": "b", "finish_reason": null}]}\n\n',
        b'data: {"choices": [{"index": 0, "text": "c", "finish_reason": "length"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}\n\n',
        b"data: [DONE]\n\n",
    )
    HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    REFUSAL = b'{"error": {"message": "try again\\nlater", "type": "rate_limit"}}'
    FAULTS = (
        b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL),
        HEAD + CHUNKS[0] + b'data: {"error": {"message": "the model is gone"}}\n\n',
        HEAD + CHUNKS[0],
        b"",
    )

    def __init__(self, fails: bool) -> None:
        self.num_failed = self.num_answered = 0
        self.bodies: list[Any] = []
        self._fails_always = fails

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.lower().splitlines()[1:] if line)
            self.bodies.append(json.loads(await reader.readexactly(int(fields[b"content-length"]))))
            if self._fails_always or len(self.bodies) % 3 == 0:
                answer = self.FAULTS[self.num_failed % len(self.FAULTS)]
                self.num_failed += 1
            else:
                answer = self.HEAD + b"".join(self.CHUNKS)
                self.num_answered += 1
            writer.write(answer)
            await writer.drain()
        writer.close()


@contextlib.contextmanager
def failing_server(*, fails: bool) -> Iterator[tuple[FailingServer, str]]:
    """Yield a server, and its address, while it runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    answers = FailingServer(fails)
    starting = asyncio.start_server(answers.handle, "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    try:
        yield answers, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_requests_that_fail_are_counted_and_their_errors_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with failing_server(fails=False) as (server, address):
        result = bench(
            "serve",
            *("--base-url", address, "--model", "demo_model", "--num-prompts", "24"),
            *("--random-input-len", "4", "--random-output-len", "3", "--max-concurrency", "4"),
            *("--save-result", "--save-detailed", "--result-filename", path, "--top-k", "5"),
            *("--extra-body", '{"user": "me"}', "--served-model-name", "other"),
        )
    found = json.loads(path.read_text())
    assert (found["completed"], found["failed"]) == (server.num_answered, server.num_failed)
    assert (found["completed"], found["failed"]) == (16, 8)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (64, 48)
    assert [bool(error) for error in found["errors"]].count(True) == 8
    assert sorted(set(found["output_lens"])) == [0, 3]
    assert "8 requests failed; the first errors:" in result.stderr
    for error in (
        "HTTP 429: try again later",
        "the model is gone",
        "stream: must end with a finish_reason or [DONE], got neither",
        "ServerDisconnectedError",
    ):
        assert any(each.startswith(error) for each in found["errors"]), (error, found["errors"])
    body = server.bodies[0]
    assert len(body.pop("prompt")) == 4
    assert body == {
        "model": "other",
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": 5,
        "user": "me",
    }


def test_where_all_requests_fail_the_command_does() -> None:
    with failing_server(fails=True) as (_, address):
        result = bench(
            "serve",
            *("--base-url", address, "--model", "demo_model", "--num-prompts", "5"),
            *("--random-input-len", "4", "--random-output-len", "3"),
            expected=1,
        )
    assert "Successful requests:                     0" in result.stdout
    assert "5 requests failed; the first errors:" in result.stderr


def test_a_server_that_is_not_there_is_one_line() -> None:
    result = bench("serve", "--base-url", "http://127.0.0.1:1", expected=1)
    assert result.stdout == ""
    assert result.stderr.startswith("error: GET http://127.0.0.1:1/v1/models: ")
    assert result.stderr.count("\n") == 1
    result = bench("serve", "--backend", "quire", "--port", "1", expected=1)
    assert result.stderr.startswith("error: ")
