"""What a request changes in its logits before they are sampled: bans, biases and penalties."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class LogitRules:
    """The rules of one sequence, applied to its row alone and in the order of the fields.

    Every operation is element by element, so a row's bits do not depend on its company.

    Attributes:
        allowed: [n] int64, the only token ids that may be sampled; empty allows all.
        early_ends: [n] int64, token ids that must not be sampled before the sequence has
            `min_length` tokens.
        min_length: tokens, prompt included.
        biased: [n] int64, token ids whose logits are shifted.
        bias: [n] float32, by how much.
        repetition: divides positive and multiplies negative logits of tokens in prompt or output.
        frequency: subtracted for each time the output holds a token.
        presence: subtracted if the output holds a token.
        num_prompt_tokens: where the output begins.
        bad_words: token ids that the output must not hold one after the other.
    """

    allowed: torch.Tensor
    early_ends: torch.Tensor
    min_length: int
    biased: torch.Tensor
    bias: torch.Tensor
    repetition: float
    frequency: float
    presence: float
    num_prompt_tokens: int
    bad_words: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, params: SamplingParams, num_prompt_tokens: int, eos_token_ids: tuple[int, ...]
    ) -> "LogitRules | None":
        """Return the rules that parameters ask for, or None if they ask for none.

        Args:
            params: of the request.
            num_prompt_tokens: of the sequence.
            eos_token_ids: of the model; they end a sequence unless `params` ignores them.
        """
        penalises = (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )
        asked = (
            params.allowed_token_ids,
            params.min_tokens,
            params.logit_bias,
            params.bad_words_token_ids,
            penalises,
        )
        if not any(asked):
            return None
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        return cls(
            allowed=_ids(params.allowed_token_ids),
            early_ends=_ids(sorted(ends)),
            min_length=num_prompt_tokens + params.min_tokens,
            biased=_ids(params.logit_bias),
            bias=torch.tensor(list(params.logit_bias.values()), dtype=torch.float32),
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            num_prompt_tokens=num_prompt_tokens,
            bad_words=params.bad_words_token_ids,
        )

    def apply(self, logits: torch.Tensor, token_ids: npt.NDArray[np.int32]) -> None:
        """Change a row of logits.

        Mutates: logits.

        Args:
            logits: [vocab_size] float32.
            token_ids: [num_tokens] int32 of the sequence, prompt and output.
        """
        if len(self.allowed) > 0:
            kept = logits[self.allowed]
            logits.fill_(-torch.inf)
            logits[self.allowed] = kept
        if len(token_ids) < self.min_length:
            logits[self.early_ends] = -torch.inf
        if self.bad_words:
            output = token_ids[self.num_prompt_tokens :].tolist()
            for *begun, last in self.bad_words:
                if not begun or output[-len(begun) :] == begun:
                    logits[last] = -torch.inf
        if len(self.biased) > 0:
            logits[self.biased] += self.bias
        if self.repetition != 1.0:
            seen = torch.from_numpy(np.unique(token_ids))
            values = logits[seen]
            logits[seen] = torch.where(
                values > 0, values / self.repetition, values * self.repetition
            )
        if self.frequency != 0.0 or self.presence != 0.0:
            output, counts = np.unique(token_ids[self.num_prompt_tokens :], return_counts=True)
            penalty = self.frequency * torch.from_numpy(counts) + self.presence
            logits[torch.from_numpy(output)] -= penalty


def _ids(token_ids: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64)
