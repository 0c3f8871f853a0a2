"""What the worker reports of log-probabilities against torch's, with ties."""

import pytest
import torch

from quire.contract.outputs import TokenLogprobs
from worker_svc.sampling.logprobs import token_logprobs


def report(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """What is reported of one row."""
    (found,) = token_logprobs(logits[None], torch.tensor([token_id]), num_top)
    return found


def random_logits() -> torch.Tensor:
    return 4 * torch.randn(300, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_sampled_token_then_the_most_probable(num_top: int, isa: str) -> None:
    logits = random_logits()
    exact = logits.double().log_softmax(0)
    order = logits.argsort(descending=True).tolist()
    for token in (order[0], order[3], order[250]):
        found = report(logits, token, num_top)
        assert found.token_ids == (token, *order[:num_top])
        assert found.sampled_rank == order.index(token) + 1
        for each, logprob in zip(found.token_ids, found.logprobs, strict=True):
            assert logprob == pytest.approx(exact[each].item(), rel=1e-6, abs=1e-7)


def test_equals_rank_by_token_id(isa: str) -> None:
    logits = torch.zeros(50)
    logits[40] = 1.0
    found = report(logits, 7, 4)
    assert found.token_ids == (7, 40, 0, 1, 2)
    assert found.sampled_rank == 2


def test_more_than_the_vocabulary_and_forbidden_tokens(isa: str) -> None:
    logits = torch.tensor([0.0, -torch.inf, 0.0])
    found = report(logits, 2, 20)
    assert found.token_ids == (2, 0, 2, 1)
    assert found.logprobs[3] == -torch.inf
    assert found.logprobs[0] == pytest.approx(-0.6931472)
