"""Graphs of the CPU: what they replay, what memory they share, and the steps that use them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.factories import VARIANTS, save_model
from tests.models.driver import Driver, load_runner
from worker_svc import ops
from worker_svc.device.cpu_graph import CpuGraph, GraphMemory, record
from worker_svc.steps.inputs import CpuInputs
from worker_svc.steps.runner import ModelRunner

PROMPTS = ([5, 9, 77, 30], [4, 128], [7, 7, 8])


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


def graph_sizes(runner: ModelRunner) -> set[int]:
    assert isinstance(runner.inputs, CpuInputs)
    return set() if runner.inputs.graphs is None else runner.inputs.graphs.sizes


def test_steps_have_the_tokens_and_logits_of_eager_ones(tmp_path: Path) -> None:
    directory = save_model(tmp_path, VARIANTS["gpt2"])
    drivers = [
        Driver(load_runner(directory, max_num_seqs=4, enforce_eager=eager, swap_space_bytes=2**20))
        for eager in (False, True)
    ]
    for driver in drivers:
        for index, prompt in enumerate(PROMPTS):
            driver.add(index, prompt)
        driver.step()
    # Tables grow beyond a block, numbers of sequences change, and a step waits for blocks.
    for number, count in enumerate([3] * 20 + [2] * 20 + [3] * 20):
        for driver in drivers:
            if number == 30:
                driver.swap(1)
            driver.step(dict.fromkeys(range(count), 1))
        graphs, eager = drivers
        assert graphs.tokens == eager.tokens
        assert all(torch.equal(graphs.logits[i], eager.logits[i]) for i in range(count))
    assert graph_sizes(drivers[0].runner) == {2, 3}
    assert graph_sizes(drivers[1].runner) == set()
