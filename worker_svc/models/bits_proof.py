"""A proof that a model's bits do not depend on what runs beside a token, nor on how it was cut.

Families of our own prove it in tests. Of a model that `transformers` runs, only its code knows what
it computes, so it is tried: a text alone, in company, in chunks, and computed again elsewhere.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch

from worker_svc.models.interface import CausalLM
from worker_svc.models.trial import Rows, Trial


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried.

    Attributes:
        length: of the text, in tokens.
        cuts: where chunks of it end, but for the last.
        before: rows of a sequence in front of the text in a step.
        behind: rows of one behind it.
        beside_last: rows beside the text's last token, each number in a step of its own.
        is_recomputed: whether the text is computed again with other blocks.
        head_rows: rows of logits that are computed at once, beside one.
    """

    length: int
    cuts: tuple[int, ...]
    before: int
    behind: int
    beside_last: tuple[int, ...] = ()
    is_recomputed: bool = False
    head_rows: tuple[int, ...] = (4,)


ON_LOADED_WEIGHTS = Plan(length=16, cuts=(1, 3), before=61, behind=53)
"""130 rows in a step: the model is large, and each row costs."""
ON_SMALL_WEIGHTS = Plan(
    length=200,
    cuts=(1, 3, 64, 65, 130, 199),
    before=53,
    behind=77,
    beside_last=(1, 2, 31, 63, 64, 100, 127, 130),
    is_recomputed=True,
    head_rows=(4, 65, 200),
)
"""Past windows and chunks of 64, where rows cost little."""

_MATES = 5
_OTHER_BLOCK_SIZE = 32


def find_dependence(
    model: CausalLM, dtype: torch.dtype, device: torch.device, limit: int, plan: Plan
) -> str | None:
    """Return what changes bits of a text: "company", "chunks", "blocks", "head"; None for nothing.

    Args:
        model: to run.
        dtype: of its cache.
        device: of the model.
        limit: of a sequence's length, in tokens.
        plan: what to try.
    """
    longest = min(limit, max(plan.length, plan.before, plan.behind, *plan.beside_last, 0))
    trial = Trial(model, dtype, device, length=longest, places=5)
    length, first, last = (min(each, limit) for each in (plan.length, plan.before, plan.behind))
    text, front, back = trial.text(length), trial.text(longest, 3), trial.text(longest, 5)
    alone = trial.step([Rows(text, 0, length, 0)])
    crowd = [Rows(front, 0, first, 1), Rows(text, 0, length, 2), Rows(back, 0, last, 3)]
    if not torch.equal(trial.step(crowd)[first : first + length], alone):
        return "company"
    for index, count in enumerate(min(each, longest) for each in plan.beside_last):
        # In front of it and behind it by turns.
        mates, own = Rows(front, 0, count, 1), Rows(text, length - 1, length, 0)
        step = trial.step([mates, own] if index % 2 else [own, mates])
        if not torch.equal(step[count if index % 2 else 0], alone[-1]):
            return "company"
    if not torch.equal(_in_chunks(trial, plan, text, front), alone):
        return "chunks"
    if plan.is_recomputed:
        other = Trial(
            model,
            dtype,
            device,
            length=length,
            places=2,
            block_size=_OTHER_BLOCK_SIZE,
            is_scattered=True,
        )
        if not torch.equal(other.step([Rows(text, 0, length, 1)]), alone):
            return "blocks"
    expected = model.compute_logits(alone[-1:])
    for count in plan.head_rows:
        if not torch.equal(model.compute_logits(alone[-count:])[-1:], expected):
            return "head"
    return None


def _in_chunks(trial: Trial, plan: Plan, text: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the hidden states of a text in chunks, the short ones alone, others in company."""
    cuts = sorted({0, len(text), *(min(cut, len(text)) for cut in plan.cuts)})
    chunks = []
    for begin, end in pairwise(cuts):
        step = [Rows(text, begin, end, 4)]
        if end - begin > 2:
            step.append(Rows(other, 0, min(_MATES, len(other)), 1))
        chunks.append(trial.step(step)[: end - begin])
    return torch.cat(chunks)
