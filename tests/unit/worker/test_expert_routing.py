"""Which experts the CPU picks, by hand; tests/kernels/test_experts.py compares a GPU with it."""

from typing import Any

import pytest
import torch

from quire.contract.errors import ModelLoadError
from worker_svc.layers.expert_routing import ExpertRouting


def logits_of(*scores: float) -> torch.Tensor:
    """A row whose sigmoids are these scores."""
    values = torch.tensor([scores], dtype=torch.float64)
    return (values / (1 - values)).log()


def pick(
    routing: ExpertRouting, logits: torch.Tensor, bias: list[float] | None = None
) -> dict[int, float]:
    """Weights by expert, in the order in which they are picked."""
    weights, experts = routing.pick(logits, None if bias is None else torch.tensor(bias))
    assert weights.dtype == torch.float32
    return dict(zip(experts[0].tolist(), weights[0].tolist(), strict=True))


def test_the_largest_come_first_and_of_equals_the_first() -> None:
    routing = ExpertRouting(6, 4, normalizes=False)
    found = pick(routing, torch.tensor([[0.1, 0.2, 0.2, 0.1, 0.3, 0.1]]).log())
    assert list(found) == [4, 1, 2, 0]
    assert found == pytest.approx({4: 0.3, 1: 0.2, 2: 0.2, 0: 0.1})


def test_weights_are_normalised_then_scaled() -> None:
    routing = ExpertRouting(4, 2, normalizes=True, scores="sigmoid", scale=2.5)
    assert pick(routing, logits_of(0.5, 0.25, 0.3, 0.1)) == pytest.approx(
        {0: 2.5 * 0.5 / 0.8, 2: 2.5 * 0.3 / 0.8}
    )


def test_a_bias_changes_the_choice_and_no_weight() -> None:
    routing = ExpertRouting(4, 2, normalizes=False, scores="sigmoid")
    bias = [-0.5, 0.0, 0.0, 0.3]
    assert pick(routing, logits_of(0.5, 0.25, 0.3, 0.1), bias) == pytest.approx({3: 0.1, 2: 0.3})


@pytest.mark.parametrize(
    ("num_of_group", "topk_group", "expected"),
    [(1, 1, [5, 4]), (2, 1, [1, 0]), (1, 2, [5, 1]), (2, 2, [5, 1])],
)
def test_experts_are_picked_from_the_kept_groups(
    num_of_group: int, topk_group: int, expected: list[int]
) -> None:
    """Of (0, 1), (2, 3) and (4, 5) the last has the largest expert, the first the largest two."""
    routing = ExpertRouting(
        6,
        2,
        normalizes=False,
        scores="sigmoid",
        num_groups=3,
        topk_group=topk_group,
        num_of_group=num_of_group,
    )
    assert list(pick(routing, logits_of(0.58, 0.6, 0.59, 0.1, 0.2, 0.7))) == expected


def test_no_expert_of_another_group_is_picked_for_its_score_of_zero() -> None:
    """Biases may leave the kept groups below that."""
    routing = ExpertRouting(4, 2, normalizes=False, scores="sigmoid", num_groups=2, topk_group=1)
    bias = [-2.0, -2.0, -3.0, -3.0]
    assert set(pick(routing, logits_of(0.1, 0.2, 0.9, 0.8), bias)) == {0, 1}


def test_weights_are_added_up_in_the_order_of_the_picks() -> None:
    """In float32, where the order shows."""
    routing = ExpertRouting(64, 32, normalizes=True, scores="sigmoid")
    logits = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    weights, experts = routing.pick(logits, None)
    scores = logits.double().sigmoid().float().gather(1, experts)
    total = torch.zeros(40)
    for i in range(32):
        total += scores[:, i]
    assert torch.equal(weights, scores / total.unsqueeze(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_groups": 3}, "n_group: must divide the 8 experts, got 3"),
        (
            {"num_groups": 4, "topk_group": 5},
            r"topk_group: must be at most n_group \(4\), got 5",
        ),
        (
            {"num_groups": 8, "num_of_group": 2, "top_k": 1},
            "n_group: must leave groups of at least 2 experts, got 8 groups of 8",
        ),
        (
            {"num_groups": 4, "topk_group": 1},
            "num_experts_per_tok: must be at most the 2 experts that it is picked from, got 3",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        ExpertRouting(**{"num_experts": 8, "top_k": 3, "normalizes": False, **options})
