"""The command line as a user types it."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from launch.cli.main import app
from quire.rpc.start import CONFIG_ERROR_STATUS
from worker_svc import invariance
from worker_svc.parallel.gloo_tls import gloo_tls_fault

ROOT = Path(__file__).resolve().parents[2]
QUIRE = [str(Path(sys.executable).parent / "quire")]


def quire(*arguments: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*QUIRE, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


@contextmanager
def serving(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`quire serve` and what it printed once ready; interrupted on the way out."""
    process = subprocess.Popen(
        [*QUIRE, "serve", "--port", "0", "--grpc-port", "0", "--kv-cache-gib", "0.03", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        yield process, "".join(lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_serve_generate_and_ctrl_c() -> None:
    with serving() as (process, ready):
        target = re.search(r"router +(\S+)", ready)
        assert target, ready
        pids = [int(pid) for pid in re.findall(r"pid (\d+)", ready)]
        assert len(pids) == 3
        for pid in pids:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            # All else came by a pipe: every user of a machine can read command lines.
            assert words[-3:-1] == ["--ready-fd", words[-2]], words

        arguments = ("generate", "--target", target[1], "--max-tokens", "12", "--seed", "5")
        first = quire(*arguments, "The list class")
        assert first.returncode == 0, first.stderr
        assert first.stdout.strip()
        assert re.search(r"\[\d+ tokens, .* seed 5\]", first.stderr)
        assert quire(*arguments, "The list class").stdout == first.stdout

        vectors = quire("embed", "--target", target[1], "The list class", "x")
        assert vectors.returncode == 0, vectors.stderr
        first, second = map(json.loads, vectors.stdout.splitlines())
        assert math.isclose(math.hypot(*first), 1.0, abs_tol=1e-6)
        assert len(first) == len(second)
        raw = quire("embed", "--target", target[1], "--no-normalize", "The list class")
        assert not math.isclose(math.hypot(*json.loads(raw.stdout)), 1.0, abs_tol=1e-3)
        refused = quire("embed", "--target", target[1], "x", "")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == "error: inputs[1]: at least 1 token, got 0\n"

        check_every_mode(target[1])

        bad = quire(*arguments, "--temperature", "nan", "x")
        assert bad.returncode == 1
        assert bad.stderr.startswith("error: temperature: ")

        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert not [pid for pid in pids if is_running(pid)]


def test_serve_replaces_its_children_when_it_is_asked_to() -> None:
    with serving() as (process, ready):
        old = re.findall(r"pid (\d+)", ready)
        process.send_signal(signal.SIGUSR1)
        lines = [process.stdout.readline() for _ in range(4)] if process.stdout else []
        replaced = [re.match(r"roll: \w+( 0)?: pid (\d+) -> (\d+), ", line) for line in lines[:3]]
        assert all(replaced), lines
        assert {match[2] for match in replaced if match} == {*old}
        assert not [pid for pid in old if is_running(int(pid))]
        assert lines[3].startswith("roll: 3 processes replaced in "), lines
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert not [match[3] for match in replaced if match and is_running(int(match[3]))]


def check_every_mode(target: str) -> None:
    """Options of `quire generate` have the effects that their names promise."""

    def generate(*options: str) -> "subprocess.CompletedProcess[str]":
        common = ("--target", target, "--max-tokens", "8", "--ignore-eos", "--seed", "5")
        result = quire("generate", *common, *options, "The list class")
        assert result.returncode == 0, result.stderr
        return result

    best = generate("-n", "2", "--best-of", "3").stderr
    assert [best.count(f"[output {index}, 8 tokens, length") for index in range(3)] == [1, 1, 0]

    beams = generate("-n", "2", "--best-of", "4", "--use-beam-search", "--length-penalty", "0")
    totals = [float(each) for each in re.findall(r"log-probability (\S+)\]", beams.stderr)]
    assert len(totals) == 2
    assert totals == sorted(totals, reverse=True)
    eager = generate("--best-of", "4", "--use-beam-search", "--early-stopping", "true").stderr
    assert eager.count("[8 tokens, length") == 1

    reported = generate("--logprobs", "2", "--prompt-logprobs", "1").stderr
    assert len(re.findall(r"^\[0: .+ \(\d+\) -\S+ rank \d+; best .+, .+\]", reported, re.M)) == 8
    assert re.search(r"^\[prompt .+ \(\d+\) -\S+ rank \d+; best .+\]", reported, re.M)

    only = generate(
        "--allowed-token-id", "40", "--allowed-token-id", "41", "--logprobs", "0"
    ).stderr
    assert re.fullmatch(r"(4[01]){8}", "".join(re.findall(r"^\[0: .+ \((\d+)\)", only, re.M)))
    biased = generate("--logit-bias", "40:100", "--logprobs", "0").stderr
    assert set(re.findall(r"^\[0: .+ \((\d+)\)", biased, re.M)) == {"40"}

    urgent = generate("--priority", "-3", "--cache-salt", "mine", "--truncate-prompt-tokens", "2")
    assert urgent.stdout.strip()
    refused = quire("generate", "--target", target, "--logit-bias", "40", "x")
    assert refused.returncode == 2
    assert "ID:BIAS" in refused.stderr


def test_children_die_with_a_killed_supervisor() -> None:
    with serving() as (process, ready):
        pids = [int(pid) for pid in re.findall(r"pid (\d+)", ready)]
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)  # polling another process's end: nothing to wait on
        assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "/no/such/model"), ("model: must be", "/no/such/model")),
        (("serve", "--port", "70000"), ("port: must be", "65535", "70000")),
        (("serve", "--max-num-seqs", "0"), ("max_num_seqs", "0")),
        pytest.param(("serve", "--block-size", "7"), ("block_size", "7"), marks=pytest.mark.deep),
        (("serve", "--max-model-len", "1000000"), ("1000000",)),
        (("generate", "--target", "127.0.0.1:1", "x"), ("127.0.0.1:1",)),
    ],
)
def test_bad_arguments_end_in_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = quire(*arguments)
    assert result.returncode != 0
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert word in errors[0]
    assert "Traceback" not in result.stderr


def test_help_is_complete_and_imports_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *QUIRE, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for command in ("serve", "generate", "router", "scheduler", "worker", "doctor"):
        assert command in result.stdout
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in result.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "typer" in imported
    heavy = {"torch", "transformers", "tokenizers", "numpy", "grpc", "ray", "cryptography"}
    assert not imported & heavy


def test_doctor_checks_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/unit/worker/test_linear_invariance.py has what it checks of them."""
    checked: list[torch.dtype] = []

    def check(dtype: torch.dtype) -> list[invariance.Violation]:
        checked.append(dtype)
        return []

    monkeypatch.setattr(invariance, "check_linear_invariance", check)
    monkeypatch.setattr(invariance, "check_split_invariance", check)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "kernels" in result.stdout
    fault = gloo_tls_fault()
    gloo = "TLS between machines" if fault is None else f"no TLS: {fault}"
    assert f"gloo       {gloo}\n" in result.stdout
    assert set(checked) == set(invariance.DTYPES.values())

    violation = invariance.Violation("float32", 8, 16, num_rows=3)
    monkeypatch.setattr(invariance, "check_split_invariance", lambda _: [violation])
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert f"linear     float32: 1 violations\n           {violation}\n" in result.stdout
    assert result.stderr.startswith("error: outputs may depend on batch size")


@pytest.mark.deep
def test_doctor_finds_no_violation() -> None:
    result = quire("doctor")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "kernels" in result.stdout


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_device_that_is_not_there_is_reported_in_one_line(command: str) -> None:
    result = quire(command, "--device", "cuda:99", "--port", "0")
    # `serve` is no service: what keeps it gets the usual status.
    assert result.returncode == (1 if command == "serve" else CONFIG_ERROR_STATUS)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: device: ")
    assert "Traceback" not in result.stderr
