"""Mixed steps as graphs: the bits of steps that start kernel by kernel, without their calls."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from bench import gpu_host, gpu_mixed
from tests.emu.conftest import needs_float8_caches
from tests.emu.emulated_device import EmulatedDevice
from tests.emu.emulated_torch import EmulatedGraph, Machine
from tests.emu.mixed_steps import (
    MODELS,
    PROMPTS,
    Mix,
    caches_of,
    graphs_of,
    load,
    num_replays,
    random_mixes,
    serve,
)
from tests.emu.test_gpu_sharing import SharingDriver
from worker_svc import ops
from worker_svc.device.cuda import CudaDevice
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.steps import mixed_graphs
from worker_svc.steps.gpu_inputs import GpuInputs
from worker_svc.steps.graphs import graph_sizes
from worker_svc.steps.mixed_graphs import SIZES, MixedGraphs, most_rows

# Kernels and graphs that a replayed step starts.
NUM_STARTS = 10


@pytest.mark.parametrize(
    ("name", "shares"),
    [*((name, False) for name in MODELS), (PROMPTS, True), ("windows", True)],
)
def test_random_mixes_have_the_bits_of_single_kernels(
    gpu: CudaDevice, tmp_path: Path, name: str, shares: bool
) -> None:
    if name == "float8":
        needs_float8_caches(gpu)
    rng = random.Random(name)
    # Each comes several times, behind other tokens: as it is, captured, and replayed.
    mixes = random_mixes(rng, 2 if name == "latent rows" else 5) * 4
    found, caches = [], []
    for eager in (True, False):
        driver = load(tmp_path, gpu, name, enforce_eager=eager)
        found.append(serve(driver, mixes, shares=shares))
        caches.append(caches_of(driver))
    graphs = graphs_of(driver.runner)
    num_captured = len(graphs.captured)
    assert num_captured >= len(mixes) // 8
    if isinstance(gpu, EmulatedDevice):
        print(f"{name}: {num_replays(graphs)} of {len(mixes)} steps, by {num_captured} graphs")
        assert num_replays(graphs) >= len(mixes) // 4
    for step, (a, b) in enumerate(zip(*found, strict=True)):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[each], b[each]) for each in a), step
    assert all(torch.equal(a, b) for a, b in zip(*caches, strict=True))


def test_launches(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    """A replayed step starts as much for any number of layers."""
    counts: dict[tuple[bool, int], Counter[str]] = {}
    for num_layers in (2, 3):
        directory = tmp_path / str(num_layers)
        directory.mkdir()
        for eager in (True, False):
            driver = load(directory, emulated_gpu, num_layers=num_layers, enforce_eager=eager)
            serve(driver, [])
            for prompt in (200, 201, 202):
                driver.add(prompt, [5] * 41)
                with counted_calls() as counts[eager, num_layers]:
                    driver.step({1: 1, 2: 1, 3: 1, prompt: 40})
    eager, replayed = (counts[each, 3] for each in (True, False))
    layer = counts[True, 3] - counts[True, 2]
    print(f"a step of 3 layers starts {eager.total()}, a layer {layer.total()}")
    print(f"replayed: {replayed.total()}, {dict(replayed.most_common())}")
    assert replayed == counts[False, 2]
    assert replayed["paged_attention"] == 0
    assert layer["paged_attention"] == 1
    assert replayed["replay"] == 1
    assert replayed.total() == NUM_STARTS


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count what the host starts: kernels of torch and ours by name, and graphs."""
    counts: Counter[str] = Counter()
    before = Counter(Machine.current.launches)
    with pytest.MonkeyPatch.context() as patch:

        def watch(owner: type, name: str, name_of: Callable[..., str]) -> None:
            call = getattr(owner, name)

            def counted(*args: Any, **options: Any) -> Any:
                counts[name_of(*args)] += 1
                return call(*args, **options)

            patch.setattr(owner, name, counted)

        watch(Machine, "kernel", lambda machine, operation, *_: operation.__name__)
        watch(EmulatedGraph, "replay", lambda graph: "replay")
        yield counts
    counts += Machine.current.launches - before


def test_steps_start_before_the_last_has_ended(
    emulated_gpu: EmulatedDevice, tmp_path: Path
) -> None:
    found = []
    for eager in (True, False):
        driver = load(tmp_path, emulated_gpu, enforce_eager=eager)
        driver.add(0, [5, 9, 3])
        driver.add(1, [*range(20, 90)])
        under_way = []
        for step in range(8):
            left = driver.num_left(1)
            under_way.append(
                driver.start({0: driver.num_left(0), 1: min(left, 20 if left > 1 else 1)})
            )
            if step >= 1:
                driver.finish(under_way.pop(0))
        driver.finish(under_way.pop())
        found.append(driver.tokens)
    assert found[0] == found[1]
    assert num_replays(graphs_of(driver.runner)) >= 1


def serve_both_ways(
    directory: Path, gpu: CudaDevice, mixes: Sequence[Mix], **options: Any
) -> SharingDriver:
    """Run steps of these mixes without graphs and with them; return the latter's driver."""
    found = []
    for eager in (True, False):
        driver = load(directory, gpu, enforce_eager=eager, **options)
        found.append(serve(driver, mixes))
    for a, b in zip(*found, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[each], b[each]) for each in a)
    return driver


@pytest.mark.parametrize(
    ("chunks", "rows_captured"),
    [
        ((9, 9, 33, 70), [16]),  # what comes once takes no graph's place
        ((9, 9, 33, 33, 9), [64]),  # a new graph does
        ((9, 9, 33, 33, 9, 9), [16]),
        ((33, 70, 33), []),  # the second came too late
    ],
)
def test_graphs_used_last_are_kept(
    emulated_gpu: EmulatedDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunks: tuple[int, ...],
    rows_captured: list[int],
) -> None:
    monkeypatch.setattr(mixed_graphs, "MAX_GRAPHS", 1)
    monkeypatch.setattr(mixed_graphs, "MAX_KINDS", 1)
    driver = serve_both_ways(tmp_path, emulated_gpu, [Mix(2, (size,)) for size in chunks])
    assert [rows for rows, _ in graphs_of(driver.runner).captured] == rows_captured


def fail_captures(gpu: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let captures of mixed steps run out of memory; return a list that counts them."""
    tried = []

    def capture(work: Callable[[], None], pool: Any) -> Any:
        owner = getattr(getattr(work, "func", None), "__self__", None)
        if not isinstance(owner, MixedGraphs):  # a decode step's
            return EmulatedDevice.capture(gpu, work, pool)
        tried.append(None)
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(gpu, "capture", capture)
    return tried


def test_a_capture_that_fails_does_not_fail_its_step(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fail_captures(emulated_gpu, monkeypatch)
    mixes = [Mix(2, (size,)) for size in (9, 9, 9, 33, 33, 33, 9)]
    with capture_logs() as logs:
        driver = serve_both_ways(tmp_path, emulated_gpu, mixes)
    assert not graphs_of(driver.runner).captured
    # Each kind once.
    assert len(tried) == 2
    (line,) = (line for line in logs if line["event"] == "graph_not_captured")
    assert (line["rows"], line["reason"]) == (16, "no memory is left")


def test_a_capture_that_fails_on_one_of_several_ranks_fails_its_step(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_captures(emulated_gpu, monkeypatch)
    driver = load(tmp_path, emulated_gpu)
    monkeypatch.setattr(graphs_of(driver.runner)._late, "_num_ranks", 2)
    with pytest.raises(torch.OutOfMemoryError):
        serve(driver, [Mix(2, (9,))] * 2)


@pytest.mark.parametrize(("max_num_seqs", "first"), [(8, 64), (64, 64), (72, 72)])
def test_the_largest_graph_is_captured_first(
    emulated_gpu: EmulatedDevice, tmp_path: Path, max_num_seqs: int, first: int
) -> None:
    """So others find their memory in the pool; with many decode steps it is one of these."""
    runner = load(tmp_path, emulated_gpu, max_num_seqs=max_num_seqs).runner
    model, rows = runner._model, []
    forward = model.forward

    def watched(input_ids: torch.Tensor, *args: Any) -> torch.Tensor:
        if Machine.current.thread.captured is not None:
            rows.append(len(input_ids))
        return forward(input_ids, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", watched)
        runner.capture_graphs(40)
        before = len(rows)
        driver = SharingDriver(runner)
        assert not any(each.any() for each in caches_of(driver))
        serve(driver, [Mix(2, (size,)) for size in (9, 9, 33, 33)])
    assert rows[0] == first == max(rows)
    assert rows.count(64) - rows[:before].count(64) == 1
    # The largest of each are captured again at the end.
    assert before == len(graph_sizes(max_num_seqs)) + 1 + 2 * (max_num_seqs < 64)


def test_tables_that_move(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    """Graphs are captured anew: the old ones read tables where they were."""
    found = []
    for eager in (True, False):
        driver = load(tmp_path, emulated_gpu, enforce_eager=eager, max_num_seqs=3)
        steps = serve(driver, [Mix(1, (9,))] * 4)
        if not eager:
            assert len(graphs_of(driver.runner).captured) == 1
            assert num_replays(graphs_of(driver.runner)) == 2
        # More sequences than the tables have rows.
        for each in range(300, 304):
            driver.add(each, [each % 90 + 3] * 4)
        for _ in range(4):
            driver.step({1: 1, 300: 1})
            steps.append(driver.logits)
        found.append(steps)
    for a, b in zip(*found, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[each], b[each]) for each in a)


def test_models_that_are_not_capturable_have_none(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_EXPERTS", 4)
    driver = load(tmp_path, emulated_gpu, "experts")
    runner, mixes = driver.runner, [Mix(2, (9,))] * 3
    inputs, held = runner.inputs, runner.mirror.held
    assert isinstance(inputs, GpuInputs)
    assert inputs.mixed_graphs is None
    assert len(serve(driver, mixes)) == 3
    # Were they captured, the host would wait meanwhile: they go on without.
    of_model = emulated_gpu, runner._model, held, runner.cache_engine.caches, inputs.rows
    inputs.mixed_graphs = MixedGraphs(*of_model, 8, None)
    runner.forget_sequences()
    with capture_logs() as logs:
        serve(SharingDriver(runner), mixes)
    assert not inputs.mixed_graphs.captured
    assert "makes the host wait while a graph is captured" in logs[-1]["reason"]


def test_a_graph_of_other_launches_is_noticed(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AttentionPlans, "launches", ())
    driver = load(tmp_path, emulated_gpu)
    with pytest.raises(RuntimeError, match="paged_attention: must start what was captured"):
        serve(driver, [Mix(1, (40,)), Mix(1, (40,)), Mix(5, (20, 18))])


def test_the_benchmark(emulated_gpu: EmulatedDevice) -> None:
    config = gpu_host.DEEP_MODEL | {"num_hidden_layers": 1}
    (found,) = gpu_mixed.measure("tiny", config, emulated_gpu, [64], 2)
    assert (found.model, found.rows) == ("tiny", 64)
    assert found.graph_ms > 0
    assert found.kernels_ms > 0


def test_sizes() -> None:
    assert [most_rows(each) for each in (1, 17, 65, 512, 8192)] == [16, 32, 128, 512, 512]
    assert all(a < b for a, b in pairwise(SIZES))
