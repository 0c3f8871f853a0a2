"""The nightly lane of containers in the image with CUDA's torch, without an engine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compose_gpu import conftest as compose_gpu
from tools.lanes import lane as lane_module
from tools.lanes import report, runner
from tools.lanes.lane import Outcome
from tools.lanes.plans import CONTAINERS_CUDA, plan

RunLane = Callable[[str, str], Outcome]


@pytest.fixture
def run_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLane:
    """Runs the lane with scripts in the place of docker and make, whose calls are recorded."""
    for module in (lane_module, runner):
        monkeypatch.setattr(module, "OUTPUT", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    commands = tmp_path / "bin"
    commands.mkdir()

    def run(docker: str, make: str) -> Outcome:
        for name, script in (("docker", docker), ("make", make)):
            (commands / name).write_text(
                f'#!/bin/sh\necho "$@" >>{tmp_path}/{name}.calls\n{script}\n'
            )
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(commands), prepend=":")
        options = f"-p no:cacheprovider --junitxml={tmp_path / CONTAINERS_CUDA.name}.xml"
        lane = replace(CONTAINERS_CUDA, environment={"PYTEST_ADDOPTS": options})
        (outcome,) = runner.Runner([lane], cores=1).run()
        return outcome

    return run


def test_it_is_a_lane_of_the_nightly_run() -> None:
    assert CONTAINERS_CUDA in plan("nightly")


def test_without_an_engine_all_tests_are_skipped_with_the_reason(
    run_lane: RunLane, tmp_path: Path
) -> None:
    outcome = run_lane("exit 1", "exit 1")

    assert outcome.word == "skipped"
    (line,) = report.skips([outcome])
    assert line.endswith("in containers-cuda: containers: no Docker engine answers (start dockerd)")
    assert not (tmp_path / "make.calls").exists()


def test_with_an_engine_the_image_is_built_and_the_tests_run_in_it(
    run_lane: RunLane, tmp_path: Path
) -> None:
    outcome = run_lane("exit 0", "exit 0")

    assert outcome.word == "ok"
    assert (tmp_path / "make.calls").read_text().splitlines() == [
        "images TARGETS=worker-cuda",
        "test-compose-gpu WORKER=worker-cuda",
    ]


def test_an_image_that_is_not_built_fails_the_lane(run_lane: RunLane, tmp_path: Path) -> None:
    outcome = run_lane("exit 0", "exit 2")

    assert outcome.word == "FAILED"
    assert (tmp_path / "make.calls").read_text() == "images TARGETS=worker-cuda\n"


def test_an_image_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other image, which is there, does not take its place."""
    there = {"quire-worker:v1"}

    def docker(*arguments: str) -> str:
        *command, image = arguments
        assert command == ["image", "ls", "--quiet"]
        return "0123456789ab" if image in there else ""

    monkeypatch.setattr(compose_gpu, "docker", docker)
    assert compose_gpu.worker_image("worker", "v1") == "quire-worker:v1"
    with pytest.raises(pytest.fail.Exception) as raised:
        compose_gpu.worker_image("worker-cuda", "v1")
    assert str(raised.value) == (
        "WORKER=worker-cuda: there is no image quire-worker-cuda:v1 "
        "(make images TARGETS=worker-cuda)"
    )
    there.add("quire-worker-cuda:v1")
    assert compose_gpu.worker_image("worker-cuda", "v1") == "quire-worker-cuda:v1"


def test_workers_have_one_of_two_images() -> None:
    with pytest.raises(pytest.fail.Exception) as raised:
        compose_gpu.worker_image("router", "v1")
    assert str(raised.value) == "WORKER: must be worker or worker-cuda, got router"
