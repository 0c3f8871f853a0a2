"""Operands go elsewhere and come back; there are GPU tests where there is a GPU."""

import pytest
import torch

from tests.kernels.gpu_proxy import KernelsElsewhere
from tests.kernels.paged import History, Span, attend
from worker_svc import ops
from worker_svc.ops import compiled


def test_what_is_elsewhere_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [Span(History.random(50, 4, 2, 64, torch.bfloat16, 0), 30, 50)]
    expected = attend(spans, fused_query=True, token_first=True)
    x = torch.randn(5, 3, 24)
    wanted, rows, weight = x.clone(), x[:, 1], torch.randn(24)
    ops.rms_norm(wanted[:, 1], wanted[:, 1], weight, 1e-5)

    monkeypatch.setattr(compiled, "_C", KernelsElsewhere(compiled._C, "cpu"))
    [actual] = attend(spans, fused_query=True, token_first=True)
    assert torch.equal(actual, expected[0])
    ops.rms_norm(rows, rows, weight, 1e-5)
    assert torch.equal(x, wanted)
