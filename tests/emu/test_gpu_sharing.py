"""Decode steps whose sequences begin with the same blocks: their own graphs, and the same bits."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from tests.emu.emulated_device import EmulatedDevice
from tests.emu.emulated_torch import EmulatedGraph, Machine
from tests.emu.launches import launched
from tests.factories import CONFIGS, save_model
from tests.models.driver import Driver, load_runner
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.steps.gpu_inputs import GpuInputs
from worker_svc.steps.graphs import DecodeGraphs

NUM_LAYERS, BLOCK_SIZE = 2, 16
# A partition of 512 tokens and a block of the next.
PREFIX = [(7 * i) % 101 + 5 for i in range(528)]


class SharingDriver(Driver):
    """A Driver of sequences that begin with the blocks of sequence 0."""

    def begin(self, behind: int = 0) -> None:
        """Compute the prefix as sequence 0, which stays; add so many others that begin with it."""
        self.add(0, [*PREFIX, 3])
        self.step()
        self._prefix = self._blocks[0][: len(PREFIX) // BLOCK_SIZE]
        for each in range(1, 1 + behind):
            self.add_behind(each, [each])

    def add_behind(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Add a sequence of the prefix and some tokens, of which the prefix is computed."""
        self.add(sequence_id, [*PREFIX, *tokens])
        self._blocks[sequence_id] = [*self._prefix]
        self._computed[sequence_id] = len(PREFIX)
        self._new.pop()
        self._hand_over(sequence_id, len(self.tokens[sequence_id]))

    def leave(self, sequence_id: int) -> None:
        """Let a sequence go; the prefix stays."""
        self._blocks[sequence_id] = self._blocks[sequence_id][len(self._prefix) :]
        self.release(sequence_id)

    @property
    def graphs(self) -> DecodeGraphs:
        """Of decode steps."""
        assert isinstance(self.runner.inputs, GpuInputs)
        assert self.runner.inputs.graphs is not None
        return self.runner.inputs.graphs

    def num_replays(self) -> dict[tuple[int, bool], int]:
        """Return how often each graph was replayed, by its size and whether it shares."""
        counts = {}
        for size, of_size in self.graphs._of_size.items():
            for shared_blocks, captured in of_size.captured.items():
                assert isinstance(captured.graph, EmulatedGraph)
                counts[size, any(shared_blocks)] = captured.graph.num_replays
        return counts


def load(directory: Path, gpu: EmulatedDevice | None, family: str = "llama") -> SharingDriver:
    """A driver of a model on a GPU, or on the CPU."""
    sizes = {"head_dim": 64, "num_hidden_layers": NUM_LAYERS, "max_position_embeddings": 1024}
    if not (directory / "config.json").exists():
        save_model(directory, CONFIGS[family](**sizes))
    runner = load_runner(
        directory,
        dtype="bfloat16",
        block_size=BLOCK_SIZE,
        device=gpu,
        max_num_seqs=8,
        invariant=True,
    )
    return SharingDriver(runner)


@contextmanager
def reads(*, apart: bool) -> Iterator[None]:
    """Have no plan see that sequences share blocks."""
    begin = AttentionPlans.begin

    def begin_apart(
        plans: AttentionPlans,
        seq_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        *_: torch.Tensor,
    ) -> None:
        begin(plans, seq_lens, query_start_loc)

    with pytest.MonkeyPatch.context() as patch:
        if apart:
            patch.setattr(AttentionPlans, "begin", begin_apart)
        yield


def assert_same_bits(
    one: Sequence[dict[int, torch.Tensor]], other: Sequence[dict[int, torch.Tensor]]
) -> None:
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[each], b[each]) for each in a), step


def serve(driver: SharingDriver) -> list[dict[int, torch.Tensor]]:
    """Serve sequences that come and go; return the logits of each step."""
    found = []

    def step(count: int) -> None:
        for _ in range(count):
            driver.step()
            found.append(driver.logits)

    driver.begin()
    for each in range(1, 7):
        driver.add_behind(each, [each, 50 + each])
    step(3)
    # One leaves, and another comes with other blocks.
    driver.leave(3)
    driver.add_behind(7, [60, 61, 62])
    step(2)
    # Those that are left are too few for sharing to pay.
    for each in (1, 2, 4, 5):
        driver.leave(each)
    step(1)
    for each in (8, 9, 10, 11):
        driver.add_behind(each, [each, each])
    step(2)
    return found


def test_steps_turn_to_sharing_and_back(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    found, replays = [], []
    for apart in (True, False):
        driver = load(tmp_path, emulated_gpu)
        captured = {*driver.num_replays()}
        with reads(apart=apart):
            found.append(serve(driver))
        counts = driver.num_replays()
        assert counts.keys() - captured == (set() if apart else {(8, True)})
        replays.append({key: count for key, count in counts.items() if count > 0})
    assert_same_bits(*found)
    # Two steps of seven sequences, one with the other, one of three, and one of seven.
    assert replays == [{(8, False): 4, (4, False): 1}, {(8, True): 4, (4, False): 1}]


def test_logits_are_near_the_cpus(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    found = []
    for gpu in (emulated_gpu, None):
        driver = load(tmp_path, gpu)
        driver.begin(behind=6)
        driver.step()
        if gpu is not None:
            assert driver.num_replays()[8, True] == 1
        # What comes first was sampled, perhaps another token.
        found.append(torch.stack([driver.logits[each] for each in range(1, 7)]))
    error = (found[0] - found[1]).square().mean().sqrt() / found[1].square().mean().sqrt()
    assert error < 0.02


def test_launches(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    """A layer of a step that shares has a launch more, and nothing else is more."""
    found = []
    for apart in (True, False):
        driver = load(tmp_path, emulated_gpu)
        driver.begin(behind=6)
        with reads(apart=apart):
            driver.step()
            ours, torchs = launched()["launches"], Counter(Machine.current.launches)
            driver.step()
        found.append((launched()["launches"] - ours, Machine.current.launches - torchs))
    assert found[1][0] - found[0][0] == NUM_LAYERS
    assert found[1][1] == found[0][1]


def test_a_graph_is_captured_while_a_step_is_under_way(
    emulated_gpu: EmulatedDevice, tmp_path: Path
) -> None:
    found = []
    for apart in (True, False):
        driver = load(tmp_path, emulated_gpu)
        driver.begin()
        driver.add_behind(1, [1])
        with reads(apart=apart):
            # The next step, which shares, starts before this one has ended.
            under_way = [driver.start()]
            for each in range(2, 7):
                driver.add_behind(each, [each])
            for _ in range(3):
                under_way.append(driver.start())
                driver.finish(under_way.pop(0))
            driver.finish(under_way.pop())
        assert driver.num_replays()[8, not apart] == 3
        found.append(driver.tokens)
    assert found[0] == found[1]


def no_memory(work: Callable[[], None], pool: Any) -> Any:
    """Take the place of a device's `capture`."""
    raise torch.OutOfMemoryError("no memory is left")


@pytest.mark.parametrize("captures", [True, False])
def test_caches_and_graphs_are_free_as_soon_as_nobody_uses_them(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    """A worker exempts them from garbage collections, and its next cache needs their memory."""
    driver = load(tmp_path, emulated_gpu)
    driver.begin(behind=6)
    if not captures:
        monkeypatch.setattr(emulated_gpu, "capture", no_memory)
    for _ in range(3):
        driver.step()
    assert isinstance(driver.runner.inputs, GpuInputs)
    owners = driver.runner.cache_engine, driver.graphs, driver.runner.inputs.mixed_graphs
    held = [weakref.ref(each) for each in (*owners, driver.runner.cache_engine.caches.stored[0][0])]
    del owners
    gc.collect()
    gc.freeze()
    try:
        del driver.runner
        assert [each() for each in held] == [None] * len(held)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_capture_that_fails_does_not_fail_the_step_of_a_rank_alone(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_ranks: int
) -> None:
    """Of several ranks it does: the others would replay exchanges that this one starts apart."""
    found = []
    for apart in (True, False):
        driver = load(tmp_path, emulated_gpu)
        driver.begin(behind=6)
        monkeypatch.setattr(emulated_gpu, "capture", no_memory)
        monkeypatch.setattr(driver.graphs._late, "_num_ranks", num_ranks)
        with capture_logs() as logs, reads(apart=apart):
            if num_ranks > 1 and not apart:
                with pytest.raises(torch.OutOfMemoryError):
                    driver.step()
                return
            steps = [driver.step() for _ in range(3)]
        monkeypatch.undo()
        assert [line["rows"] for line in logs if line["event"] == "graph_not_captured"] == (
            [] if apart else [8]
        )
        found.append(steps)
    assert found[0] == found[1]


def test_layers_with_windows_read_apart(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    """Of two plans only that of the layers without a window shares."""
    found = []
    for apart in (True, False):
        driver = load(tmp_path, emulated_gpu, "gemma2")
        driver.begin(behind=6)
        steps = []
        with reads(apart=apart):
            for _ in range(2):
                driver.step()
                steps.append(driver.logits)
        assert driver.num_replays()[8, not apart] == 2
        found.append(steps)
    assert_same_bits(*found)


def test_a_graph_of_other_launches_is_noticed(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AttentionPlans, "shared_blocks", ())
    driver = load(tmp_path, emulated_gpu)
    driver.begin(behind=6)
    with pytest.raises(RuntimeError, match="paged_attention: must start what was captured"):
        driver.step()
