"""Denormal numbers count as zero in kernels of the CPU, and nowhere else."""

import pytest
import torch

from tests.kernels.paged import History, Span, attend
from worker_svc import ops

SMALL = 2.0**-130

wide_enough = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@wide_enough
def test_operands(cpu_isa: str, dtype: torch.dtype) -> None:
    for num_rows in (1, 4096):  # on the calling thread, and on all
        x = torch.full((num_rows, 64), SMALL).to(dtype)
        out = torch.ones_like(x)
        ops.quick_gelu(out, x)
        assert (out == 0).all()
        weight = torch.ones(64, dtype=dtype)
        ops.layer_norm(out, x, weight, weight, 0.0)
        assert out.isnan().all()  # 0 / 0


@wide_enough
def test_results(cpu_isa: str, dtype: torch.dtype) -> None:
    x = torch.full((3, 64), 1.5 * 2.0**-125).to(dtype)
    out = torch.ones_like(x)
    ops.rms_norm(out, x, torch.full((64,), 2.0**-6).to(dtype), 1.0)
    assert (out == 0).all()


@wide_enough
def test_attention(cpu_isa: str, dtype: torch.dtype) -> None:
    history = History.random(40, 4, 2, 64, dtype, 0)
    history.value[:] = SMALL
    assert (torch.cat(attend([Span(history, 0, 40)])) == 0).all()


def test_what_is_copied_stays(cpu_isa: str) -> None:
    key = torch.full((16, 2, 8), SMALL)
    caches = [torch.zeros(1, 2, 16, 8) for _ in range(2)]
    slots = torch.arange(16)
    ops.reshape_and_cache(key, key, caches[0], caches[1], slots)
    back = [torch.zeros_like(key) for _ in range(2)]
    ops.gather_cached_kv(back[0], back[1], caches[0], caches[1], slots)
    assert torch.equal(back[1], key)


def test_the_calling_thread_goes_on_as_before(cpu_isa: str) -> None:
    x = torch.full((1, 64), SMALL)
    ops.quick_gelu(torch.empty_like(x), x)
    assert (x * 0.5 == SMALL / 2).all()
