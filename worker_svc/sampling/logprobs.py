"""Log-probabilities of sampled tokens and of the most probable ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from quire.contract.outputs import TokenLogprobs
from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.device.base import Array
from worker_svc.device.cpu import CpuDevice
from worker_svc.sampling.rules import LogitRules, RuledRow, apply_rules


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """What sequences asked to know with the tokens of a step.

    Attributes:
        indices: [n] index among the sampling sequences of those that asked for log-probabilities.
        num_top: [n] how many of the most probable tokens each of them asked for.
        beams: candidates of the sampling sequences that are beams, by index.
    """

    indices: tuple[int, ...] = ()
    num_top: tuple[int, ...] = ()
    beams: dict[int, TokenLogprobs] = field(default_factory=dict)

    def read(self, token_ids: IntArray, arrays: Sequence[Array]) -> tuple[TokenLogprobs, ...]:
        """Return the report of each token, parallel to them; empty if no sequence asked for one.

        Args:
            token_ids: [num_sampling] int64, the sampled tokens.
            arrays: the results of ops.top_logprobs for the sequences of `indices`; empty if there
                are none.
        """
        if not self.indices and not self.beams:
            return ()
        reports = [TokenLogprobs()] * len(token_ids)
        for index, candidates_of_beam in self.beams.items():
            reports[index] = candidates_of_beam
        if self.indices:
            found = read_logprobs(token_ids[list(self.indices)], self.num_top, arrays)
            for index, each in zip(self.indices, found, strict=True):
                reports[index] = each
        return tuple(reports)


def read_logprobs(
    token_ids: Sequence[int] | IntArray, num_top: Sequence[int], arrays: Sequence[Array]
) -> list[TokenLogprobs]:
    """Return the log-probabilities of tokens and of the most probable ones.

    Args:
        token_ids: [n] int64.
        num_top: [n] how many of the most probable to add to each.
        arrays: the results of ops.top_logprobs for these tokens, copied to the host.
    """
    logprobs, ranks, top_ids, top_logprobs = (array.tolist() for array in arrays)
    return [
        TokenLogprobs(
            token_ids=(int(token_id), *top_ids[row][:count]),
            logprobs=(logprobs[row], *top_logprobs[row][:count]),
            sampled_rank=ranks[row],
        )
        for row, (token_id, count) in enumerate(zip(token_ids, num_top, strict=True))
    ]


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> list[TokenLogprobs]:
    """Return the log-probabilities of tokens and of the most probable ones; waits for them.

    Args:
        logits: [n, vocab_size] float32.
        token_ids: [n] int64.
        num_top: how many of the most probable to add; equal logits rank by token id, lowest first.
    """
    tensors = ops.top_logprobs(logits, token_ids, num_top)
    arrays = [each.cpu().numpy() for each in tensors]
    return read_logprobs(token_ids.cpu().tolist(), [num_top] * len(token_ids), arrays)


def candidates(
    logits: torch.Tensor,
    num_candidates: int,
    rules: LogitRules | None,
    token_ids: npt.NDArray[np.int32],
) -> TokenLogprobs:
    """Return the most probable next tokens of a beam, after a first entry that means nothing.

    Rules change the log-probabilities, which are not normalised again, as in `transformers`.

    Args:
        logits: [vocab_size] float32 on the CPU, before rules.
        num_candidates: tokens to return.
        rules: rules of the sequence; None for none.
        token_ids: [num_tokens] int32 tokens of the sequence.
    """
    logprobs = _log_softmax(logits)
    if rules is not None:
        apply_rules(logprobs.unsqueeze(0), [RuledRow(0, rules, token_ids)], CpuDevice().place)
    best = _top(logprobs, num_candidates)
    return TokenLogprobs((0, *best), (0.0, *logprobs[best].tolist()), 1)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities [vocab_size] float32 of logits [vocab_size] float32.

    Each row by itself and summed in float64, so that its bits do not depend on other rows.
    """
    row = logits.double()
    return (row - row.logsumexp(0)).float()


def _top(values: torch.Tensor, count: int) -> list[int]:
    """Return the ids of the largest of values [vocab_size], largest first; equal ones by id."""
    threshold = values.topk(min(count, len(values))).values[-1]
    found = (values >= threshold).nonzero().flatten()
    order = torch.argsort(values[found], descending=True, stable=True)
    best: list[int] = found[order][:count].tolist()
    return best
