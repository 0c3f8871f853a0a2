"""`quire run-batch`: a file of requests, killed in the middle, has the answers of a whole run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import SharedClusters

NUM_REQUESTS = 60
NUM_KILLS = 2


def command(inputs: Path, outputs: Path, url: str) -> list[str]:
    code = "from launch.cli.main import main; main()"
    return [
        *(sys.executable, "-c", code, "run-batch", "--url", url, "--concurrency", "4"),
        *("-i", str(inputs), "-o", str(outputs)),
    ]


def answers_of(path: Path) -> dict[str, Any]:
    """Return what each request was answered, but for what differs between runs."""
    answers = {}
    for line in path.read_text().splitlines():
        found = json.loads(line)
        body = found["response"]["body"]
        assert found["custom_id"] not in answers, "a line came twice"
        choices = [{**choice, "logprobs": None} for choice in body.get("choices", ())]
        answers[found["custom_id"]] = (
            found["response"]["status_code"],
            choices,
            body.get("data"),
            body.get("error"),
        )
    return answers


def test_a_batch_that_is_killed_loses_nothing_and_repeats_nothing(
    shared_clusters: SharedClusters, tmp_path: Path
) -> None:
    url = f"http://{shared_clusters.get(port=0).router.http_address}"
    inputs = tmp_path / "in.jsonl"
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "The list class", "max_tokens": 40, "ignore_eos": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/embeddings", {"input": "The list class"}),
        ("/v1/completions", {"prompt": "a", "temperature": -1}),
    ]
    with inputs.open("w") as file:
        for number in range(NUM_REQUESTS):
            path, body = bodies[number % len(bodies)]
            if "messages" in body:
                body = {**body, "max_tokens": 40}
            line = {"custom_id": f"r{number}", "method": "POST", "url": path, "body": body}
            file.write(json.dumps(line) + "\n")
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    done = subprocess.run(
        command(inputs, whole, url), capture_output=True, text=True, timeout=300, check=False
    )
    # Those with a temperature of -1.
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "15 requests failed; their lines have an error",
    )
    for number in range(1, NUM_KILLS + 1):
        running = subprocess.Popen(command(inputs, killed, url), stderr=subprocess.DEVNULL)
        wanted = number * NUM_REQUESTS // (NUM_KILLS + 1)
        while not killed.exists() or killed.read_bytes().count(b"\n") < wanted:
            assert running.poll() is None, "it ended before it was killed"
            time.sleep(0.005)
        running.send_signal(signal.SIGKILL)
        running.wait()
    # As a machine that loses its power leaves it.
    killed.write_bytes(killed.read_bytes() + b'{"custom_id": "r5')
    subprocess.run(command(inputs, killed, url), capture_output=True, timeout=300, check=False)
    assert answers_of(killed) == answers_of(whole)
    assert set(answers_of(whole)) == {f"r{number}" for number in range(NUM_REQUESTS)}


def test_a_line_that_is_no_request_is_named(tmp_path: Path) -> None:
    inputs = tmp_path / "in.jsonl"
    inputs.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/nothing", "body": {}}\n')
    done = subprocess.run(
        command(inputs, tmp_path / "out.jsonl", "http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {inputs}, line 1: url: must be")
