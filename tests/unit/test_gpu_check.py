"""What `make gpu-check` does in which order, and what is left of a run that is cut short."""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_check, recorded_steps
from bench.gpu_predictions import compared
from bench.gpu_sums import FEATURES, ROWS, Timed, table

ABOUT: dict[str, Any] = {"device": "NVIDIA H100 80GB HBM3", "capability": "90", "gpus": 2}
SOON_KNOWN = ["build", "first", "bits", "protos", "graphs"]
# Side by side: they end in any order.
TOGETHER = {"tests", "worker", "memcheck", "racecheck", "flashinfer", "flashinfer-compile"}
COMPARED = {"flashinfer", "flashinfer-compile"}
BEFORE = ["build", "bits", "protos"]
AFTER = [
    "ranks",
    "cluster",
    "bench",
    "bench-kinds",
    "start",
    "bench-sums",
    "bench-mixed",
    "bench-gpu",
]
KERNEL_FIGURES: dict[str, Any] = {
    "cases": [
        {"case": "64 x 4k", "group": 4, "share_of_copy": {"ours": 0.9}},
        {"case": "1 x 128k", "group": 4, "share_of_copy": {"ours": 0.5}},
    ],
    "linear": [],
    "prompts": [{"rows": 8192, "length": 8192, "tflops": {"ours": 240.0, "torch": 500.0}}],
}
SUMS = [
    Timed("peer memory", "bfloat16", 4096, 64, 4.5),
    Timed("nccl", "bfloat16", 4096, 64, 30.0),
    Timed("nccl", "float32", 4096, 64, 31.0),
]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recorded_steps.Check:
    """A run that has not begun, on a machine where every command succeeds."""
    build = tmp_path / "build"
    (build / "csrc").mkdir(parents=True)
    (build / "csrc" / "_C.so").touch()
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_check, "BUILD", build)
    monkeypatch.setattr(gpu_check, "FLASHINFER", build / "flashinfer")
    wheels = build / "wheels"
    wheels.mkdir()
    (wheels / "flashinfer_python-1.0-py3-none-any.whl").touch()
    monkeypatch.setattr(gpu_check, "FLASHINFER_WHEELS", wheels)
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: f"/opt/{name}")
    monkeypatch.setattr(gpu_check.importlib.util, "find_spec", lambda name: name)
    fails(monkeypatch, "")
    return recorded_steps.Check(ABOUT, tmp_path / "results" / "run.json", 100.0)


def fails(monkeypatch: pytest.MonkeyPatch, word: str, writes: str = "") -> None:
    """Have commands with a word fail; those with `writes` write figures first."""

    def run(command: tuple[object, ...], env: dict[str, str], timeout_s: float) -> dict[str, Any]:
        words = [str(each) for each in command]
        if writes and writes in words:
            Path(words[-1]).write_text(json.dumps(KERNEL_FIGURES))
        is_bad = bool(word) and any(word in each for each in words)
        return {"ok": not is_bad, "s": 0.1, "output": " ".join(words)}

    monkeypatch.setattr(recorded_steps, "run_command", run)


def test_what_is_measured_is_measured_alone(check: recorded_steps.Check) -> None:
    assert gpu_check.run_all(check, smoke=False, without=[]) == 0
    steps = [*check.steps]
    assert steps[: len(BEFORE)] == BEFORE
    assert {*steps[len(BEFORE) : -len(AFTER)]} == TOGETHER
    assert steps[-len(AFTER) :] == AFTER
    written = json.loads(check.path.read_text())
    assert [*written["steps"]] == steps
    assert written["device"] == ABOUT["device"]


def test_kernels_that_were_built_before_are_not_built(
    check: recorded_steps.Check, tmp_path: Path
) -> None:
    kernels = tmp_path / "_C.so"
    assert gpu_check.run_all(check, smoke=True, without=[], kernels=kernels) == 0
    assert [*check.steps] == SOON_KNOWN[1:]


def test_only_one_capability_has_instructions_of_its_own() -> None:
    assert [gpu_check.architecture(each) for each in ("80", "89", "90", "100")] == [
        *("80", "89", "90a", "100")
    ]


def test_a_failed_test_has_the_bits_looked_at_with_launches_apart(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, "tests/kernels")
    assert gpu_check.run_all(check, smoke=False, without=["sanitizer", "flashinfer"]) == 1
    assert {"bits", "bits-apart"} <= {*check.steps}


def test_an_old_transformers_is_not_compared_with(
    check: recorded_steps.Check,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gpu_check.importlib.metadata, "version", lambda name: "5.17.0")
    assert gpu_check.run_all(check, smoke=False, without=[]) == 0
    assert "not (equal_transformers and gemma2)" in check.steps["worker"]["output"]
    assert "must be 5.23 or newer, got 5.17.0" in capsys.readouterr().out
    assert "got 5.17.0" in json.loads(check.path.read_text())["left_out"]


def test_smoke_stops_there(check: recorded_steps.Check) -> None:
    assert gpu_check.run_all(check, smoke=True, without=[]) == 0
    assert [*check.steps] == SOON_KNOWN


def test_sums_over_two_gpus_are_skipped_with_the_reason_on_one(
    check: recorded_steps.Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check.about = ABOUT | {"gpus": 1}
    assert gpu_check.run_all(check, smoke=False, without=[]) == 0
    reason = "sums over ranks need two GPUs, got 1"
    assert json.loads(check.path.read_text())["steps"]["bench-sums"]["skipped"] == reason
    printed = capsys.readouterr().out
    assert "bench-sums  skipped" in printed
    assert f"skipped: {reason}" in printed


def test_sums_are_measured_over_two_of_the_gpus(check: recorded_steps.Check) -> None:
    check.about = ABOUT | {"gpus": 8}
    assert gpu_check.run_all(check, smoke=False, without=[]) == 0
    assert "bench.gpu_sums --size 2 --json" in check.steps["bench-sums"]["output"]
    assert "skipped" not in check.steps["bench-sums"]


def test_what_does_not_build_is_not_run(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, "dev_build.sh")
    assert gpu_check.run_all(check, smoke=False, without=[]) == 1
    assert [*check.steps] == ["build"]


def test_each_step_is_written_when_it_has_ended(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_check, "bench", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_check.run_all(check, smoke=False, without=[])
    assert {*json.loads(check.path.read_text())["steps"]} == {*BEFORE, *TOGETHER, *AFTER[:2]}


def test_a_missing_sanitizer_is_an_error_unless_it_is_named(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: None)
    assert gpu_check.run_all(check, smoke=False, without=[]) == 1
    failed = {name for name, found in check.steps.items() if not found["ok"]}
    assert failed == {"memcheck", "racecheck"}
    check.steps.clear()
    assert gpu_check.run_all(check, smoke=False, without=["sanitizer"]) == 0
    assert "memcheck" not in check.steps


def test_missing_wheels_are_an_error_unless_they_are_named(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_check, "FLASHINFER_WHEELS", tmp_path / "none")
    assert gpu_check.run_all(check, smoke=False, without=[]) == 1
    assert [name for name, found in check.steps.items() if not found["ok"]] == ["flashinfer"]
    assert "tools.lock fetch flashinfer" in check.steps["flashinfer"]["output"]
    check.steps.clear()
    assert gpu_check.run_all(check, smoke=False, without=["flashinfer"]) == 0
    assert not COMPARED & {*check.steps}


def test_what_does_not_compile_is_not_measured(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, "bench.flashinfer_decode")
    assert gpu_check.run_all(check, smoke=False, without=[]) == 1
    assert not gpu_check.has_flashinfer(check)
    assert check.steps["bench"]["ok"]


def test_a_worker_that_cannot_run_is_an_error_and_kernels_are_measured(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check.importlib.util, "find_spec", lambda name: None)
    assert gpu_check.run_all(check, smoke=False, without=[]) == 1
    assert not check.steps["protos"]["ok"]
    assert "transformers" in check.steps["protos"]["output"]
    assert "bench" in check.steps
    assert not {"worker", "bench-gpu"} & {*check.steps}


def test_figures_stand_beside_what_was_predicted(
    check: recorded_steps.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, "", writes="bench.kernels_gpu")
    gpu_check.run_all(check, smoke=False, without=[])
    found = {
        each["name"]: (each["measured"], each["as_predicted"])
        for each in check.steps["bench"]["predictions"]
    }
    assert found == {
        "decode attention, 64 x 4k, G=4, of a copy": (0.9, True),
        "decode attention, 1 x 128k, G=4, of a copy": (0.5, False),
        "prompt of 8k, TFLOP/s": (240.0, True),
    }


@pytest.mark.parametrize(("device", "count"), [("NVIDIA L4", 2), ("NVIDIA H200", 3)])
def test_rates_are_predicted_for_some_cards_and_shares_for_all(device: str, count: int) -> None:
    names = {each["name"] for each in compared("bench", device, KERNEL_FIGURES)}
    assert ("prompt of 8k, TFLOP/s" in names) == (count == 3)
    assert len(names) == count


def test_a_sum_of_each_size_is_predicted_for_cards_with_nvlink() -> None:
    libraries = ("peer memory", "nccl")
    figures = {
        "sums": [
            asdict(Timed(library, "bfloat16", features, rows, 10.0))
            for library, features, rows in product(libraries, FEATURES, ROWS)
        ]
    }
    found = {each["name"]: each["predicted"] for each in compared("bench-sums", "H200", figures)}
    assert all(name.endswith("us, modelled") for name in found)
    sums = product(libraries, FEATURES, ROWS)
    taken = [each for each in sums if each[0] == "nccl" or 2 * each[1] * each[2] <= 512 << 10]
    assert len(found) == len(taken) == 2 * len(FEATURES) * len(ROWS) - 1
    assert found["sum of 1 x 4096 over two, peer memory, us, modelled"] == [3.0, 4.0]
    assert found["sum of 64 x 4096 over two, peer memory, us, modelled"] == [4.2, 6.3]
    assert not [*compared("bench-sums", "NVIDIA L4", figures)]


def test_sums_stand_beside_what_was_predicted() -> None:
    figures = {"sums": [asdict(each) for each in SUMS]}
    found = {
        each["name"]: each["as_predicted"]
        for each in compared("bench-sums", ABOUT["device"], figures)
    }
    assert found == {
        "sum of 64 x 4096 over two, peer memory, us, modelled": True,
        "sum of 64 x 4096 over two, nccl, us, modelled": False,
    }


def test_a_sum_that_peers_do_not_take_has_a_dash() -> None:
    assert table(SUMS).splitlines() == [
        "| summand | peer memory, us | nccl in order, us | nccl, us |",
        "|---|---|---|---|",
        "| 64 x 4096, bfloat16 | 4.5 | - | 30.0 |",
        "| 64 x 4096, float32 | - | - | 31.0 |",
    ]
