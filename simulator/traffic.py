"""Requests over time: conversations begin at random, their turns follow the answers."""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from simulator.config import TrafficConfig
from simulator.rate_curve import RateCurve
from simulator.texts import Library, SimulatedRequest, draw_lengths

FloatArray = npt.NDArray[np.float64]
_SAMPLED_CONVERSATIONS = 4000
_AGE_STEP_S = 0.1


@dataclass(slots=True)
class _Conversation:
    """A conversation whose last turns are still to come, each (message, answer, time to think)."""

    num_tokens: int
    turns: list[tuple[int, int, float]]


class Traffic:
    """Makes requests. The same seed makes the same conversations, whatever the cluster does.

    Args:
        config: which requests arrive, and when.
        library: of the texts.
        max_model_len: tokens of prompt and answer together; conversations end before.
        token_s: assumed time of an answer for each of its tokens, in seconds; the rate that has
            `config.streams` answers under way at the peak follows from it.
        seed: of all random choices.
    """

    def __init__(
        self,
        config: TrafficConfig,
        library: Library,
        max_model_len: int,
        token_s: float,
        seed: int,
    ) -> None:
        self._config = config
        self._library = library
        self._max_model_len = max_model_len
        curve_rng, sizing_rng, self._rng = (
            np.random.Generator(np.random.Philox(each))
            for each in np.random.SeedSequence(seed).spawn(3)
        )
        self.curve = RateCurve(config, curve_rng)
        self._tenants = _zipf(config.num_tenants, config.zipf)
        self._documents = _zipf(config.num_documents, config.zipf)
        self.peak_rate = (
            config.streams / self._streams_at_peak(sizing_rng, token_s)
            if config.peak_rate is None
            else config.peak_rate
        )
        self._conversations: dict[int, _Conversation] = {}
        # (time, conversation, tenant, document) of each turn whose time has not come.
        self._coming: list[tuple[float, int, int, int | None]] = []
        self._num_conversations = 0
        self._num_requests = 0

    @property
    def has_coming(self) -> bool:
        """Whether conversations that have begun have turns left."""
        return bool(self._coming)

    def arrivals(self, start_s: float, end_s: float) -> list[SimulatedRequest]:
        """Return the requests that arrive in [start_s, end_s), in order of arrival."""
        self._begin_conversations(start_s, min(end_s, self._config.duration_s))
        requests = []
        while self._coming and self._coming[0][0] < end_s:
            arrival_s, conversation_id, tenant_id, document_id = heappop(self._coming)
            conversation = self._conversations[conversation_id]
            message, answer, _ = conversation.turns[0]
            conversation.num_tokens += message
            requests.append(
                SimulatedRequest(
                    self._num_requests,
                    conversation_id,
                    tenant_id,
                    document_id,
                    conversation.num_tokens,
                    answer,
                    max(arrival_s, start_s),
                )
            )
            self._num_requests += 1
        return requests

    def answered(self, request: SimulatedRequest, end_s: float) -> None:
        """Schedule the next turn, unless the conversation or the day is over."""
        conversation = self._conversations[request.conversation_id]
        _, answer, think_s = conversation.turns.pop(0)
        conversation.num_tokens += answer
        next_s = end_s + think_s
        if not conversation.turns or next_s >= self._config.duration_s:
            del self._conversations[request.conversation_id]
            return
        heappush(
            self._coming,
            (next_s, request.conversation_id, request.tenant_id, request.document_id),
        )

    def _begin_conversations(self, start_s: float, end_s: float) -> None:
        if end_s <= start_s:
            return
        middle_s = (start_s + end_s) / 2
        mean = self.peak_rate * self.curve.share(middle_s) * (end_s - start_s)
        count, num_bursting = int(self._rng.poisson(mean)), 0
        burst = self.curve.burst(middle_s)
        if burst is not None:
            num_bursting = int(self._rng.poisson(mean * (self._config.burst_factor - 1)))
        total = count + num_bursting
        times = start_s + (end_s - start_s) * self._rng.random(total)
        tenants = np.searchsorted(self._tenants, self._rng.random(total))
        documents = np.searchsorted(self._documents, self._rng.random(total))
        about_document = self._rng.random(total) < self._config.document_share
        for index, turns in enumerate(self._turns(self._rng, total)):
            document_id = int(documents[index]) if about_document[index] else None
            if burst is not None and index >= count:
                document_id = burst.document_id
            tenant_id = int(tenants[index])
            if document_id is not None:
                tenant_id = self._library.owner(document_id)
            self._begin(float(times[index]), tenant_id, document_id, turns)

    def _begin(
        self,
        time_s: float,
        tenant_id: int,
        document_id: int | None,
        turns: list[tuple[int, int, float]],
    ) -> None:
        conversation_id = self._num_conversations
        self._num_conversations += 1
        opening = SimulatedRequest(0, conversation_id, tenant_id, document_id, 0, 0, time_s)
        num_shared = self._library.num_prompt_tokens(opening)
        lengths = accumulate(message + answer for message, answer, _ in turns)
        num_turns = sum(num_shared + length <= self._max_model_len for length in lengths)
        if num_turns:
            self._conversations[conversation_id] = _Conversation(0, turns[:num_turns])
            heappush(self._coming, (time_s, conversation_id, tenant_id, document_id))

    def _turns(self, rng: np.random.Generator, count: int) -> list[list[tuple[int, int, float]]]:
        """Return (message, answer, time to think) of every turn of `count` conversations."""
        numbers = rng.geometric(1 / self._config.mean_turns, count)
        total = int(numbers.sum())
        turns = list(
            zip(
                draw_lengths(rng, self._config.message, total),
                draw_lengths(rng, self._config.answer, total),
                map(float, rng.exponential(self._config.think_s, total)),
                strict=True,
            )
        )
        ends = accumulate(map(int, numbers), initial=0)
        return [turns[start:end] for start, end in pairwise(ends)]

    def _streams_at_peak(self, rng: np.random.Generator, token_s: float) -> float:
        """Return how many answers are under way at most at a peak rate of 1 conversation a second.

        An answer counts as under way from its turn on, for `token_s` times its length.
        """
        step_s = _AGE_STEP_S
        num_steps = int(self._config.duration_s / step_s) + 1
        # Answers under way of a conversation, by its age: +1 where one begins, -1 where it ends.
        changes = np.zeros(num_steps + 1)
        for turns in self._turns(rng, _SAMPLED_CONVERSATIONS):
            age_s = 0.0
            for _, answer, think_s in turns:
                for moment_s, change in ((age_s, 1), (age_s + answer * token_s, -1)):
                    changes[min(int(moment_s / step_s), num_steps)] += change
                age_s += answer * token_s + think_s
        by_age = changes[:num_steps].cumsum() / _SAMPLED_CONVERSATIONS
        rates = np.array([self.curve.rate(step * step_s) for step in range(num_steps)])
        return float(np.convolve(rates, by_age)[:num_steps].max() * step_s)


def _zipf(count: int, exponent: float) -> FloatArray:
    """Return the cumulative probabilities of `count` items, the most popular first."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    cumulated = weights.cumsum() / weights.sum()
    cumulated[-1] = 1.0
    return np.asarray(cumulated, np.float64)
