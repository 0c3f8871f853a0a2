"""Bytes and numbers of blocks against published figures."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quire.contract.engine_options import CacheOptions
from quire.contract.steps import max_sampled_rows
from worker_svc.cache.engine import block_bytes
from worker_svc.cache.profile import profile_cache
from worker_svc.cache.shapes import empty_caches
from worker_svc.device.base import MemoryProfile
from worker_svc.device.cpu import CpuDevice
from worker_svc.device.cuda import SPARE_BYTES, CudaDevice
from worker_svc.layers.linear import HeadShare
from worker_svc.parallel.group import ParallelGroup

BLOCK_SIZE = 16
GIB = 2**30
# 20.44 GiB, as it is printed.
OPT_125M_CACHE_BYTES = 21_946_158_284


def test_opt_125m_in_fp16() -> None:
    """12 layers of 12 heads of 64: what vLLM reports for this model and this much memory."""
    heads = HeadShare(12, 12, 64, ParallelGroup())
    model = SimpleNamespace(heads=heads, num_layers=12)
    loaded: Any = SimpleNamespace(model=model, kv_cache_dtype=torch.float16)
    bytes_per_block = block_bytes(loaded, BLOCK_SIZE)
    assert bytes_per_block == 12 * 49_152
    num_blocks = OPT_125M_CACHE_BYTES // bytes_per_block
    assert num_blocks == 37_207
    assert num_blocks * BLOCK_SIZE == 595_312


class MeasuredDevice:
    """A GPU of 24 GiB, of which the largest step's peak and what was there before are taken."""

    rounding_bytes = 1 << 21
    is_immediate = False

    def __init__(self, peak: int, others: int) -> None:
        self._peak, self._others = peak, others

    def peak_bytes(self, _step: object) -> int:
        return self._peak

    def taken_bytes(self) -> int:
        return self._others

    def memory_bytes(self) -> tuple[int, int]:
        return 24 * GIB - self._others, 24 * GIB

    def profile_memory(
        self, _prepare: object, utilization: float | None, _lend: object, held_bytes: int
    ) -> MemoryProfile:
        device: Any = self
        return CudaDevice.profile_memory(
            device, lambda: lambda: None, utilization, lambda: [], held_bytes
        )


def test_a_step_takes_whole_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of memory that torch has taken nobody else can use what its tensors leave."""
    reserved = most = 900

    def reserve(num_bytes: int) -> None:
        nonlocal reserved, most
        reserved, most = num_bytes, max(most, num_bytes)

    def forget_the_most() -> None:
        nonlocal most
        most = reserved

    for name, function in {
        "empty_cache": lambda: reserve(100),
        "memory_reserved": lambda _: reserved,
        "reset_peak_memory_stats": lambda _: forget_the_most(),
        "max_memory_reserved": lambda _: most,
        "synchronize": lambda _: None,
        "Stream": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)

    def step() -> None:
        reserve(max(reserved, 700))
        reserve(200)

    assert CudaDevice(0).peak_bytes(step) == 600 + SPARE_BYTES


def test_what_lies_between_weights_does_not_come_back() -> None:
    """Of a cache of 5 GiB 3 are taken from the device, and the rest fills gaps."""
    device: Any = MeasuredDevice(peak=GIB, others=4 * GIB)
    lent = [torch.empty(1), torch.empty(1)]
    references = [weakref.ref(each) for each in lent]

    def lend() -> list[torch.Tensor]:
        device._others += 3 * GIB
        return [lent.pop(), lent.pop()]

    def prepare() -> Callable[[], None]:
        assert [each() for each in references] == [None, None]
        return lambda: None

    profile = CudaDevice.profile_memory(device, prepare, 0.5, lend, 0)
    # The real cache, of two tensors, is rounded up.
    assert profile.free_bytes == (24 - 4 - 1) * GIB - 2 * (2 << 20)
    assert profile.default_bytes == (12 - 4 - 1) * GIB - 2 * (2 << 20)


def test_blocks_of_24_gib() -> None:
    """Nine tenths of the device without weights, the largest step and what others hold."""
    assert f"{OPT_125M_CACHE_BYTES / GIB:.2f}" == "20.44"
    taken = int(0.9 * 24 * GIB) - OPT_125M_CACHE_BYTES
    peak = taken // 3
    heads = HeadShare(12, 12, 64, ParallelGroup())
    loaded: Any = SimpleNamespace(
        model=SimpleNamespace(heads=heads, num_layers=12, is_capturable=True),
        dtype=torch.float16,
        kv_cache_dtype=torch.float16,
        draft=None,
        device=MeasuredDevice(peak, taken - peak),
        weight_bytes=taken - peak,
        info=SimpleNamespace(max_model_len=2048, embedding_size=768, vocab_size=50_272),
    )
    options = CacheOptions(block_size=BLOCK_SIZE, max_num_seqs=1024, enforce_eager=True)
    profile = profile_cache(loaded, options)
    assert profile.num_blocks == 37_207
    assert profile.block_bytes == 12 * 49_152
    assert profile_cache(loaded, replace(options, enforce_eager=False)) == profile
    # No more blocks than the sequences of a step fill.
    few = profile_cache(loaded, CacheOptions(block_size=BLOCK_SIZE, max_num_seqs=256))
    assert few.num_blocks == 256 * 2048 // BLOCK_SIZE

    meta = partial(torch.empty, device="meta")
    caches = empty_caches(1, heads, torch.float16, BLOCK_SIZE, profile.num_blocks, meta)
    assert sum(cache.nbytes for cache in caches.stored[0]) == 1_828_798_464
    assert profile.num_blocks * BLOCK_SIZE == 595_312


def test_on_cpus_it_is_a_share_of_what_was_free_for_all_workers_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = iter([64 * GIB, 40 * GIB, 40 * GIB, 40 * GIB, 1 * GIB])
    monkeypatch.setattr("worker_svc.device.cpu.available_memory_bytes", lambda: next(free))
    loaded: Any = SimpleNamespace(
        model=SimpleNamespace(
            heads=HeadShare(12, 12, 64, ParallelGroup()), num_layers=12, is_capturable=False
        ),
        dtype=torch.bfloat16,
        kv_cache_dtype=torch.bfloat16,
        draft=None,
        device=CpuDevice(),
        weight_bytes=2 * GIB,
        info=SimpleNamespace(max_model_len=2**20, embedding_size=768, vocab_size=50_272),
    )
    half = CacheOptions(gpu_memory_utilization=0.5, max_num_batched_tokens=1, max_num_seqs=64)

    def cache_bytes(options: CacheOptions, num_at_host: int = 1) -> int:
        profile = profile_cache(loaded, options, num_at_host)
        return profile.num_blocks * profile.block_bytes

    step_bytes = 768 * 96 + max_sampled_rows(64) * 50_272 * 8
    block_bytes = profile_cache(loaded, half).block_bytes
    for num_at_host in (1, 2):
        left = 32 * GIB // num_at_host - 2 * GIB - step_bytes
        assert 0 <= left - cache_bytes(half, num_at_host) < block_bytes
    # Never more than what is free by now.
    assert cache_bytes(half) <= GIB


@pytest.mark.parametrize("max_model_len", [1, 16, 17, 1000])
def test_on_cpus_it_is_no_larger_than_what_its_sequences_fill(
    max_model_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_svc.device.cpu.available_memory_bytes", lambda: 64 * GIB)
    loaded: Any = SimpleNamespace(
        model=SimpleNamespace(
            heads=HeadShare(2, 2, 64, ParallelGroup()), num_layers=2, is_capturable=False
        ),
        dtype=torch.bfloat16,
        kv_cache_dtype=torch.bfloat16,
        draft=None,
        device=CpuDevice(),
        weight_bytes=2**20,
        info=SimpleNamespace(max_model_len=max_model_len, embedding_size=128, vocab_size=1000),
    )
    blocks_of_one = -(-max_model_len // BLOCK_SIZE)
    for max_num_seqs in (1, 4, 256):
        options = CacheOptions(block_size=BLOCK_SIZE, max_num_seqs=max_num_seqs)
        profile = profile_cache(loaded, options)
        assert profile.num_blocks == max_num_seqs * blocks_of_one
        # Far more would have been free, by default too.
        assert profile.num_blocks * profile.block_bytes < GIB


@pytest.mark.parametrize(("num_layers", "num_heads"), [(27, 16), (61, 128)])
@pytest.mark.parametrize("size", [1, 8])
def test_latents_count_once(num_layers: int, num_heads: int, size: int) -> None:
    """DeepSeek-V2-Lite and V3: 576 elements for each token and layer, on every rank."""
    heads = HeadShare(num_heads, 1, 576, ParallelGroup(size - 1, size), value_size=512)
    model = SimpleNamespace(heads=heads, num_layers=num_layers)
    loaded: Any = SimpleNamespace(model=model, kv_cache_dtype=torch.bfloat16)
    assert block_bytes(loaded, BLOCK_SIZE) == num_layers * BLOCK_SIZE * 576 * 2
    caches = empty_caches(num_layers, heads, torch.bfloat16, BLOCK_SIZE, 3)
    assert [len(layer) for layer in caches.stored] == [1] * num_layers
    assert caches.layer(0).keys.shape == (3, 1, BLOCK_SIZE, 576)
    assert caches.layer(0).values.shape == (3, 1, BLOCK_SIZE, 512)


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float8_e4m3fn, 64 / 128), (torch.int8, 68 / 128)]
)
def test_a_byte_for_each_element(dtype: torch.dtype, share: float) -> None:
    """Half the bytes of float16, and four for the scale of each row of int8."""
    heads = HeadShare(12, 12, 64, ParallelGroup())
    model = SimpleNamespace(heads=heads, num_layers=12)
    loaded: Any = SimpleNamespace(model=model, kv_cache_dtype=dtype)
    assert block_bytes(loaded, BLOCK_SIZE) == 12 * 49_152 * share
