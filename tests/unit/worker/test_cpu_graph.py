"""Graphs of the CPU: what they replay, what memory they share, and the steps that use them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.factories import save_model
from tests.models.driver import Driver, load_runner
from tests.variants import VARIANTS
from worker_svc import ops
from worker_svc.device.cpu_graph import CpuGraph, GraphMemory, record
from worker_svc.steps.inputs import CpuInputs
from worker_svc.steps.runner import ModelRunner


def silu(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    ops.silu_and_mul(out, x)
    return out


@torch.inference_mode()
def test_replay_reads_inputs_anew() -> None:
    x = torch.rand(3, 32)

    def work() -> torch.Tensor:
        rows = torch.nn.functional.embedding(torch.tensor([2, 0]), x)  # a result of torch's own
        rows += 1.0  # a change in place
        return silu(rows).view(-1)

    graph = record(work, GraphMemory())
    assert torch.equal(graph.result, work())
    x.normal_()
    assert torch.equal(graph.replay(), work())


FIRST_RECORDING = """
import sys, torch
from worker_svc.device.cpu_graph import GraphMemory, record
before = set(sys.modules)
record(lambda: torch.ones(3) + 1.0, GraphMemory())
print(len(set(sys.modules) - before))
"""


def test_a_first_recording_imports_nothing() -> None:
    """A compiler, and what that needs: the first steps of a worker waited for it."""
    command = [sys.executable, "-c", FIRST_RECORDING]
    found = subprocess.run(command, capture_output=True, check=True, text=True)
    assert int(found.stdout) < 5


@torch.inference_mode()
def test_a_timed_replay_computes_the_same_and_names_its_operations() -> None:
    x = torch.rand(3, 64)
    recording = ops.Recording()
    recording.start()
    first = silu(x)
    second = silu(first)
    recording.stop()
    x.normal_()
    seconds = recording.replay_timed()
    assert torch.equal(second, silu(silu(x)))
    assert seconds.keys() == {"silu_and_mul"}
    assert seconds["silu_and_mul"] > 0.0


def chain(x: torch.Tensor, length: int) -> Callable[[], torch.Tensor]:
    def work() -> torch.Tensor:
        y = x
        for _ in range(length):
            y = silu(torch.cat((y, y), dim=1))
        return y

    return work


@torch.inference_mode()
def test_memory_is_used_again_within_a_graph_and_by_the_next() -> None:
    memory = GraphMemory()
    record(chain(torch.rand(4, 64), 2), memory)
    size = memory.num_bytes
    long = chain(torch.rand(4, 64), 40)
    graph = record(long, memory)
    assert memory.num_bytes == size
    assert torch.equal(graph.replay(), long())


@torch.inference_mode()
def test_graphs_of_one_memory_take_turns() -> None:
    memory = GraphMemory()
    works = [chain(torch.rand(rows, 64), 3) for rows in (1, 4, 2)]
    graphs = [record(work, memory) for work in works]
    for work, graph in [*zip(works, graphs, strict=True)] * 2:
        assert torch.equal(graph.replay(), work())


def test_results_read_on_the_host_are_refused() -> None:
    x = torch.rand(2)
    with pytest.raises(RuntimeError, match="must not be used in a graph"):
        record(lambda: x * x.sum().item(), GraphMemory())
    # The thread can record again.
    assert isinstance(record(lambda: torch.ones(2), GraphMemory()), CpuGraph)


def graph_shapes(runner: ModelRunner) -> set[tuple[int, int]]:
    assert isinstance(runner.inputs, CpuInputs)
    return set() if runner.inputs.graphs is None else runner.inputs.graphs.shapes


def test_steps_have_the_tokens_and_logits_of_eager_ones(tmp_path: Path) -> None:
    directory = save_model(tmp_path, VARIANTS["gpt2"])
    graphs, eager = drivers = [
        Driver(load_runner(directory, enforce_eager=eager, swap_space_bytes=2**20))
        for eager in (False, True)
    ]

    def step(scheduled: dict[int, int]) -> None:
        for driver in drivers:
            driver.step(scheduled)
        assert graphs.tokens == eager.tokens
        assert graphs.logits.keys() == eager.logits.keys()
        assert all(torch.equal(graphs.logits[i], eager.logits[i]) for i in eager.logits)

    def add(prompts: dict[int, list[int]]) -> None:
        for driver in drivers:
            for index, prompt in prompts.items():
                driver.add(index, prompt)
        step({index: len(prompt) for index, prompt in prompts.items()})

    add({0: [5, 9, 77, 30], 1: [4, 128], 2: [7, 7, 8]})
    # Tables grow beyond a block, shapes change, and a step waits for blocks.
    for number in range(60):
        if number == 30:
            for driver in drivers:
                driver.swap(1)
        step(dict.fromkeys((0, 1, 2) if number < 20 else (0, 1) if number < 40 else (2,), 1))
    # Tokens of one shape have other owners.
    for first, lengths in ((10, (1, 4, 1)), (20, (4, 1, 1)), (30, (2, 2, 2))):
        add({first + i: [9, 5, 60, 7][:length] for i, length in enumerate(lengths)})
    assert graph_shapes(graphs.runner) == {(3, 3), (2, 2), (1, 1), (6, 3)}
    assert graph_shapes(eager.runner) == set()
