"""What requests ask beside sampling, by row of the mirror; most ask for nothing."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.outputs import TokenLogprobs
from worker_svc.logit_rules import LogitRules
from worker_svc.logprobs import candidates, token_logprobs
from worker_svc.steps import SequenceState


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Of one sequence.

    Attributes:
        rules: what to change in its logits; None for nothing.
        num_logprobs: most probable tokens to report with each sampled one; None for no report.
        num_candidates: most probable tokens to report of a beam; 0 where a token is sampled.
        num_prompt_logprobs: most probable tokens to report with each of the prompt; None for none.
        num_prompt_tokens: of the sequence.
    """

    rules: LogitRules | None
    num_logprobs: int | None
    num_candidates: int
    num_prompt_logprobs: int | None
    num_prompt_tokens: int

    @classmethod
    def of(cls, state: SequenceState, eos_token_ids: tuple[int, ...]) -> "RowOptions | None":
        """Return what a sequence asks for, or None if it asks for nothing."""
        params = state.sampling_params
        rules = LogitRules.of(params, state.num_prompt_tokens, eos_token_ids)
        asked = (rules, params.logprobs, params.prompt_logprobs)
        if all(each is None for each in asked) and not state.num_candidates:
            return None
        return cls(
            rules,
            params.logprobs,
            state.num_candidates,
            params.prompt_logprobs,
            state.num_prompt_tokens,
        )

    @property
    def reports(self) -> bool:
        """Whether something is reported with each token."""
        return self.num_logprobs is not None or self.num_candidates > 0

    def apply_rules(self, logits: torch.Tensor, token_ids: npt.NDArray[np.int32]) -> None:
        """Change a row of logits before a token is sampled from it.

        Mutates: logits.

        Args:
            logits: [vocab_size] float32.
            token_ids: [num_tokens] int32 of the sequence.
        """
        if self.rules is not None:
            self.rules.apply(logits, token_ids)

    def report(
        self, logits: torch.Tensor, token_id: int, token_ids: npt.NDArray[np.int32]
    ) -> TokenLogprobs:
        """Return what is to be reported with a token.

        Args:
            logits: [vocab_size] float32, as the model gave them.
            token_id: that was sampled.
            token_ids: [num_tokens] int32 of the sequence before it.
        """
        if self.num_candidates:
            return candidates(logits, self.num_candidates, self.rules, token_ids)
        assert self.num_logprobs is not None, "asked of a sequence that reports"
        return token_logprobs(logits, token_id, self.num_logprobs)
