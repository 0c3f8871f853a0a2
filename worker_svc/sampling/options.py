"""What few requests ask for: rules for their logits, log-probabilities, candidates, vectors."""

from dataclasses import dataclass, replace

from quire.contract.pooling_params import PoolingParams
from quire.contract.steps import SequenceState
from worker_svc.sampling.grammars import Grammars, GrammarState
from worker_svc.sampling.rules import LogitRules


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The options of one sequence.

    Attributes:
        rules: changes to its logits; None for none.
        grammar: how far it is in its grammar; None for none, and on ranks that sample nothing.
        num_logprobs: most probable tokens to report with each sampled one; None for no report.
        num_candidates: most probable tokens to report of a beam; 0 where a token is sampled.
        num_prompt_logprobs: most probable tokens to report with each of the prompt; None for none.
        num_prompt_tokens: tokens of its prompt.
        pooling: how its vector is made; None where it samples.
    """

    rules: LogitRules | None
    grammar: GrammarState | None
    num_logprobs: int | None
    num_candidates: int
    num_prompt_logprobs: int | None
    num_prompt_tokens: int
    pooling: PoolingParams | None = None

    @classmethod
    def of(
        cls, state: SequenceState, eos_token_ids: tuple[int, ...], grammars: Grammars | None = None
    ) -> "RowOptions | None":
        """Return what a sequence asks for, or None if it asks for nothing.

        Args:
            state: the sequence.
            eos_token_ids: end-of-text ids of the model.
            grammars: opens its grammar; None where nothing is sampled.
        """
        params, pooling = state.sampling_params, state.pooling_params
        rules = LogitRules.of(params, state.num_prompt_tokens, eos_token_ids)
        asked = (rules, params.logprobs, params.prompt_logprobs, pooling)
        if all(each is None for each in asked) and not state.num_candidates:
            return None
        grammar = None
        if params.structured_outputs is not None and grammars is not None:
            grammar = grammars.state(params.structured_outputs, state.num_prompt_tokens)
        return cls(
            rules,
            grammar,
            params.logprobs,
            state.num_candidates,
            params.prompt_logprobs,
            state.num_prompt_tokens,
            pooling,
        )

    def fork(self) -> "RowOptions":
        """Return the options of a copy of the sequence."""
        return self if self.grammar is None else replace(self, grammar=self.grammar.fork())
