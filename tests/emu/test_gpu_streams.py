"""What the emulated GPU reports that a real one would answer with wrong numbers, now and then."""

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emu.conftest import IS_EMULATED
from tests.emu.emulated_device import EmulatedDevice, emulated_gpu
from tests.emu.emulated_torch import EmulatedStream, Machine
from tests.emu.launches import capture
from tests.emu.test_gpu_worker import continuations, inputs_of, swapped
from tests.factories import CONFIGS, save_model
from tests.models.driver import load_runner
from worker_svc import ops
from worker_svc.cache.mover_gpu import StreamBlockMover
from worker_svc.device.cuda import CudaDevice, PinnedCopies
from worker_svc.ops import compiled
from worker_svc.steps.graphs import DecodeGraphs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model."""
    return save_model(tmp_path, CONFIGS["llama"]())


def test_layers_wait_for_the_blocks_that_move(
    emulated_gpu: EmulatedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swapped(model, emulated_gpu) == continuations(model)[2]
    monkeypatch.setattr(StreamBlockMover, "await_layer", lambda self, layer: None)
    with pytest.raises(RuntimeError, match="must wait for stream"):
        swapped(model, emulated_gpu)


def test_blocks_that_move_wait_for_what_computes_them(
    emulated_gpu: EmulatedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(model, dtype="float32", device=emulated_gpu, swap_space_bytes=1 << 20)
    mover = runner.cache_engine.mover
    one, none = np.array([[0, 1]]), np.empty((0, 2), np.int64)
    # Copied on the compute stream, then swapped out on the other.
    mover.start(none, none, one)
    mover.start(one, none, none)
    monkeypatch.setattr(EmulatedStream, "wait_stream", lambda self, stream: None)
    mover.start(none, none, one)
    with pytest.raises(RuntimeError, match="must wait for stream"):
        mover.start(one, none, none)


def test_results_are_waited_for(
    emulated_gpu: EmulatedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = emulated_gpu.fetch([torch.arange(3, device=emulated_gpu.torch_device)])
    assert copies._copies[0].tolist() != [0, 1, 2]
    assert copies.wait()[0].tolist() == [0, 1, 2]
    monkeypatch.setattr(PinnedCopies, "wait", lambda self: [each.numpy() for each in self._copies])
    with pytest.raises(RuntimeError, match="before it had come"):
        continuations(model, device=emulated_gpu)


def test_uploads_are_not_overwritten(
    emulated_gpu: EmulatedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = continuations(model, device=emulated_gpu, ahead=True)
    buffers: dict[int, tuple[torch.Tensor, object]] = {}

    def always_the_same(self: CudaDevice, num_bytes: int) -> tuple[torch.Tensor, object]:
        made = self.pinned((1 << 16,), torch.uint8), self.new_event()
        return buffers.setdefault(0, made)

    assert expected == continuations(model, device=emulated_gpu)
    monkeypatch.setattr(CudaDevice, "_next_upload", always_the_same)
    with pytest.raises(RuntimeError, match="written before the copy"):
        continuations(model, device=emulated_gpu, ahead=True)


def test_nothing_is_waited_for_while_a_graph_is_captured(emulated_gpu: EmulatedDevice) -> None:
    event = emulated_gpu.new_event()
    event.record(emulated_gpu.compute_stream)
    for wait in (event.synchronize, emulated_gpu.synchronize):
        with pytest.raises(RuntimeError, match="while a graph is captured"):
            emulated_gpu.capture(wait, None)
        wait()


def test_what_makes_the_host_wait_is_not_captured(
    emulated_gpu: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More experts than the kernels take: the host decides which of them run.
    monkeypatch.setattr(ops, "MAX_EXPERTS", 4)
    save_model(tmp_path, CONFIGS["mixtral"]())
    runner = load_runner(tmp_path, dtype="float32", device=emulated_gpu, max_num_seqs=2)
    assert inputs_of(runner).graphs is None
    monkeypatch.setattr(runner._model, "is_capturable", True)
    graphs = DecodeGraphs(
        emulated_gpu,
        runner._model,
        runner.mirror.held,
        runner.cache_engine.caches,
        inputs_of(runner).rows,
        2,
    )
    with pytest.raises(RuntimeError, match="makes the host wait"):
        graphs.capture()


def plan_of(gpu: EmulatedDevice) -> object:
    """A plan of attention, which takes memory of the host and of the device."""
    query = torch.zeros(1, 4, 64, dtype=torch.bfloat16, device=gpu.torch_device)
    cache = torch.zeros(2, 1, 16, 64, dtype=torch.bfloat16, device=gpu.torch_device)
    lengths = torch.tensor([5], dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    return ops.plan_attention(query, cache, cache, lengths, starts)


def test_no_memory_is_allocated_while_a_graph_is_captured(emulated_gpu: EmulatedDevice) -> None:
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        emulated_gpu.capture(lambda: plan_of(emulated_gpu) and None, None)
    assert plan_of(emulated_gpu) is not None


def test_no_memory_is_freed_while_a_graph_is_captured(emulated_gpu: EmulatedDevice) -> None:
    plans = [plan_of(emulated_gpu)]
    with pytest.raises(RuntimeError, match="was called while a graph is captured"):
        emulated_gpu.capture(plans.clear, None)


def test_no_garbage_is_collected_while_a_graph_is_captured(emulated_gpu: EmulatedDevice) -> None:
    class Holder:
        def __init__(self) -> None:
            self.plan = plan_of(emulated_gpu)
            self.itself = self

    def work() -> None:
        # Enough new objects for several collections.
        assert len([[] for _ in range(100_000)]) == 100_000

    gc.collect()
    holder = Holder()
    is_there = weakref.ref(holder)
    del holder
    emulated_gpu.capture(work, None)
    assert is_there() is not None
    assert gc.isenabled()
    work()
    assert is_there() is None


def test_a_replay_allocates_nothing(emulated_gpu: EmulatedDevice) -> None:
    plans: list[object] = []

    def operation() -> None:
        """Make a plan each time, of which a graph would make none."""
        plans.append(plan_of(emulated_gpu))

    _, again = capture(operation, ())
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        again()
    assert len(plans) == 1


def test_devices_do_not_mix(emulated_gpu: EmulatedDevice) -> None:
    there = torch.ones(3, device=emulated_gpu.torch_device)
    with pytest.raises(RuntimeError, match="tensors of the CPU"):
        there + torch.ones(3)
    assert (there + there).cpu().tolist() == [2.0] * 3


@pytest.mark.skipif(not IS_EMULATED, reason="only the emulator shows this")
def test_a_thread_launches_on_its_own_gpu() -> None:
    """Another thread begins with the first GPU, whatever this one has chosen."""
    with emulated_gpu(index=1) as gpu:
        x = torch.ones(3, 64, device=gpu.torch_device)
        out, weight = torch.empty_like(x), torch.ones(64, device=gpu.torch_device)

        def compute(prepare: Callable[[], None]) -> list[float]:
            prepare()
            with torch.inference_mode(), Machine.current:
                ops.rms_norm(out, x, weight, 0.0)
                return out[0, :2].cpu().tolist()

        with ThreadPoolExecutor(1) as threads:
            with pytest.raises(RuntimeError, match=r"memory of device 1 .* on device 0"):
                threads.submit(compute, lambda: None).result()
            assert threads.submit(compute, gpu.start_waiting_thread).result() == [1.0, 1.0]


def test_kernels_run_on_torchs_stream(emulated_gpu: EmulatedDevice) -> None:
    """The kernels keep no stream of their own, which could be another than torch's."""
    asked: list[int] = []

    def stream() -> int:
        asked.append(len(asked))
        return 0

    x = torch.ones(3, 64, device=emulated_gpu.torch_device)
    out, weight = torch.empty_like(x), torch.ones(64, device=emulated_gpu.torch_device)
    compiled._C.follow_streams(stream)
    try:
        for _ in range(2):
            ops.rms_norm(out, x, weight, 1e-5)
        assert asked == [0, 1]
    finally:
        compiled._C.follow_streams(None)
