"""Beam search over the sequences of a group: which go on, which fork, when it is over.

The rules are those of `transformers`, so that both return the same texts with the same scores. A
score is the sum of a text's log-probabilities over its length to the power of `length_penalty`;
running beams are compared by their sums, since they are all of one length.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quire.contract.outputs import FinishReason, Hypothesis, TokenLogprobs
from quire.contract.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam of the next step.

    Attributes:
        sequence_id: of the beam that it continues.
        token_id: by which.
        cumulative_logprob: of its output.
        logprobs: at its new position, if the request asked for them.
    """

    sequence_id: int
    token_id: int
    cumulative_logprob: float
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class _Beam:
    """A running sequence of the search."""

    cumulative_logprob: float
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A complete text and its score."""

    score: float
    hypothesis: Hypothesis


class BeamSearch:
    """The search of one group.

    Args:
        params: of the request.
        sequence_id: of the only beam so far.
        num_stop_token_ids: how many tokens end a text.
        num_prompt_tokens: of the request.

    Attributes:
        num_candidates: tokens that the workers must report for each beam: enough that, even if
            every stop token is among its best, it alone can fill a full set of beams; and as many
            as the request wants to see.
    """

    def __init__(
        self,
        params: SamplingParams,
        sequence_id: int,
        num_stop_token_ids: int,
        num_prompt_tokens: int,
    ) -> None:
        self._width = params.width
        self._num_returned = params.n
        self._length_penalty = params.length_penalty
        self._early_stopping = params.early_stopping
        self._num_top_logprobs = params.logprobs
        self._num_prompt_tokens = num_prompt_tokens
        self.num_candidates = max(params.width + num_stop_token_ids, params.logprobs or 0)
        # In order of their rank, which decides between candidates of equal scores.
        self._beams = {sequence_id: _Beam(0.0, ())}
        self._candidates: dict[int, TokenLogprobs] = {}
        self._finished: list[_Finished] = []

    def report(self, sequence_id: int, candidates: TokenLogprobs) -> bool:
        """Take the most probable next tokens of a beam.

        Args:
            sequence_id: of the beam.
            candidates: a token to ignore, then the most probable ones, best first.

        Returns:
            Whether all beams have reported, so that `advance` can decide.
        """
        self._candidates[sequence_id] = candidates
        return len(self._candidates) == len(self._beams)

    def forget_reports(self) -> None:
        """Drop the reports of this step: the beams will be computed again."""
        self._candidates.clear()

    def advance(
        self,
        token_ids_of: dict[int, list[int]],
        stop_token_ids: Collection[int],
        max_num_tokens: int,
    ) -> list[Continuation]:
        """Choose the beams of the next step.

        Args:
            token_ids_of: tokens of each beam, prompt included; all of one length.
            stop_token_ids: tokens that end a text.
            max_num_tokens: length, prompt included, at which a text ends.

        Returns:
            Best first; empty when the search is over.
        """
        candidates = self._ranked_candidates()
        num_tokens = 1 + len(next(iter(token_ids_of.values())))
        is_last = num_tokens >= max_num_tokens
        continuations: list[Continuation] = []
        for place, candidate in enumerate(candidates):
            if is_last or candidate.token_id in stop_token_ids:
                # One that the beams of this step would not have kept is no result either.
                if place < self._width:
                    last = self._with_logprobs(candidate)
                    self._finish(last, token_ids_of[candidate.sequence_id], stop_token_ids)
            elif len(continuations) < self._width:
                continuations.append(self._with_logprobs(candidate))
        self._candidates = {}
        if not continuations or self._is_over(
            continuations[0].cumulative_logprob, num_tokens, max_num_tokens
        ):
            return []
        return continuations

    def rename(self, kept: Mapping[int, Continuation]) -> None:
        """Record which sequence each continuation became; all other beams are dropped.

        Args:
            kept: by sequence id, best first.
        """
        self._beams = {
            sequence_id: _Beam(each.cumulative_logprob, self._logprobs_with(each))
            for sequence_id, each in kept.items()
        }

    def hypotheses(self) -> list[Hypothesis]:
        """Return the texts found, best first, at most as many as were asked for."""
        return [finished.hypothesis for finished in self._finished[: self._num_returned]]

    def _ranked_candidates(self) -> list[Continuation]:
        found = [
            Continuation(sequence_id, token_id, beam.cumulative_logprob + logprob, None)
            for sequence_id, beam in self._beams.items()
            for token_id, logprob in zip(
                self._candidates[sequence_id].token_ids[1:],
                self._candidates[sequence_id].logprobs[1:],
                strict=True,
            )
            if logprob > float("-inf")  # banned
        ]
        found.sort(key=lambda each: -each.cumulative_logprob)
        return found

    def _with_logprobs(self, each: Continuation) -> Continuation:
        if self._num_top_logprobs is None:
            return each
        reported = self._candidates[each.sequence_id]
        place = reported.token_ids.index(each.token_id, 1)
        top = slice(1, 1 + self._num_top_logprobs)
        logprobs = TokenLogprobs(
            (each.token_id, *reported.token_ids[top]),
            (reported.logprobs[place], *reported.logprobs[top]),
            place,
        )
        return Continuation(each.sequence_id, each.token_id, each.cumulative_logprob, logprobs)

    def _logprobs_with(self, each: Continuation) -> tuple[TokenLogprobs, ...]:
        before = self._beams[each.sequence_id].logprobs
        return before if each.logprobs is None else (*before, each.logprobs)

    def _finish(
        self, last: Continuation, token_ids: list[int], stop_token_ids: Collection[int]
    ) -> None:
        """Keep a complete text if it is among the best."""
        output = (*token_ids[self._num_prompt_tokens :], last.token_id)
        stopped = last.token_id in stop_token_ids
        hypothesis = Hypothesis(
            token_ids=output,
            cumulative_logprob=last.cumulative_logprob,
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            logprobs=self._logprobs_with(last),
        )
        score = _score(last.cumulative_logprob, len(output), self._length_penalty)
        self._finished.append(_Finished(score, hypothesis))
        self._finished.sort(key=lambda each: -each.score)
        del self._finished[self._width :]

    def _is_over(self, best_sum: float, num_tokens: int, max_num_tokens: int) -> bool:
        """Whether no running beam is expected to end better than the worst text found so far.

        Sums only fall, but with a positive length penalty a longer text may score better. How far
        to look ahead for that is set by `early_stopping`.
        """
        if len(self._finished) < self._width:
            return False
        if self._early_stopping is True:
            return True
        looks_ahead = self._early_stopping == "never" and self._length_penalty > 0
        length = (max_num_tokens if looks_ahead else num_tokens) - self._num_prompt_tokens
        return _score(best_sum, length, self._length_penalty) <= self._finished[-1].score


def _score(cumulative_logprob: float, length: int, length_penalty: float) -> float:
    divisor: float = length**length_penalty
    return cumulative_logprob / divisor
