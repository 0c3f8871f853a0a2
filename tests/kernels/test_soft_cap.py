"""apply_soft_cap bounds logits smoothly."""

import pytest
import torch

from worker_svc import ops


def test_against_float64(isa: str) -> None:
    wide = torch.linspace(-300, 300, 3 * 700).reshape(3, 700)
    logits = wide[:, :650]  # rows that are not next to each other
    expected = (30 * torch.tanh(logits.double() / 30)).float()
    beyond = wide[:, 650:].clone()
    ops.apply_soft_cap(logits, 30.0)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(wide[:, 650:], beyond)


def test_infinities_become_the_cap(isa: str) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("inf")]])
    ops.apply_soft_cap(logits, 2.5)
    assert logits.tolist() == [[-2.5, 0.0, 2.5]]


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_caps_that_bound_nothing_are_refused(cap: float) -> None:
    with pytest.raises(ValueError, match=r"^cap: must be positive and finite, got"):
        ops.apply_soft_cap(torch.zeros(1, 2), cap)


def test_logits_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^logits: must be float32, got float16"):
        ops.apply_soft_cap(torch.zeros(1, 2).half(), 1.0)
