"""Speculation: which sequences may have tokens drafted, and how many."""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_svc.sequences.step_times import StepTimes

# Of what an observation says about a sequence, and about all of them.
_WEIGHT = 0.2
_WEIGHT_WITH_DRAFT_MODEL = 0.04  # it guesses about as well all along; texts repeat here and there
_WEIGHT_OF_ALL = 0.02
# Below, a draft is not worth its row even where rows cost nothing.
LEAST_ACCEPTANCE = 0.1
# Steps between two trials while nothing is accepted; doubled with each that fails.
FIRST_INTERVAL = 2
LONGEST_INTERVAL = 64
# So that the rows of a trial cost little where a batch is large; others have their turn.
SEQUENCES_OF_TRIAL = 16
# In which a draft model reads the sequences of a trial and drafts for none of them.
MOST_READING_STEPS = 8
# Prompts tell little about steps of a few rows.
_MOST_STEP_TOKENS = 256
# A step that took longer than so many of its kind says more about the machine than about drafts.
_OUTLIER = 2.0


@dataclass(slots=True)
class SpeculationCounters:
    """Sums over all drafts so far.

    Attributes:
        draft_tokens: tokens that were drafted.
        accepted_tokens: how many of them were right, so that a step brought them along.
    """

    draft_tokens: int = 0
    accepted_tokens: int = 0


class Speculation:
    """Grants slots for drafts where these are expected to bring more tokens per second.

    A step with drafts has more rows, and the next one cannot be sent before its result is here:
    what that costs is measured, as the times of steps with and without slots. What drafts bring
    follows from the share of each sequence's drafts that were right of late. Where none is right,
    it is tried again at ever longer intervals.

    Args:
        max_draft_tokens: the most slots of a sequence in a step; 0 grants none.

    Attributes:
        has_draft_model: whether a sequence that has slots and no drafts is one that the draft model
            has yet to read; else there was nothing to look up.
        counters: of the drafts.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.has_draft_model = False
        ladder = (2, 4, 8, 16, 32)
        self._ladder = [each for each in ladder if each < max_draft_tokens]
        if max_draft_tokens:
            self._ladder.append(max_draft_tokens)
        self.counters = SpeculationCounters()
        # By sequence, the probability that a drafted token is right; that of all for new ones.
        self._acceptance: dict[int, float] = {}
        self._acceptance_of_all = 0.5
        self._interval = FIRST_INTERVAL
        self._steps_to_trial = 0
        self._first_of_trial = 0
        self._num_reading_steps = 0
        self._plain = StepTimes(least_spread_tokens=0.5, half_life_steps=30)
        self._drafting = StepTimes(least_spread_tokens=0.5, half_life_steps=30)

    @property
    def is_on(self) -> bool:
        """Whether any sequence can get slots."""
        return bool(self._ladder)

    def forget(self, sequence_id: int) -> None:
        """Forget a sequence, which has ended."""
        self._acceptance.pop(sequence_id, None)

    # ------------------------------------------------------------------ grants

    def plan(self, sequence_ids: Iterable[int], max_slots: int) -> dict[int, int]:
        """Return the slots of the sequences that get any in the next step.

        Args:
            sequence_ids: those that decode.
            max_slots: the most of all together.
        """
        if not self._plain.is_measured or max_slots < self._ladder[0]:
            return {}
        decoding = list(sequence_ids)
        slots, num_expected = self._promising(decoding, max_slots)
        if slots and self._pays(len(decoding), sum(slots.values()), num_expected):
            return slots
        self._steps_to_trial -= 1
        if self._steps_to_trial > 0:
            return {}
        num_tried = min(SEQUENCES_OF_TRIAL, max_slots // self._ladder[0])
        if not self._num_reading_steps:
            self._first_of_trial += num_tried
        first = self._first_of_trial % max(1, len(decoding))
        tried = [*decoding[first:], *decoding[:first]][:num_tried]
        return dict.fromkeys(tried, self._ladder[0])

    def _promising(self, sequence_ids: list[int], max_slots: int) -> tuple[dict[int, int], float]:
        """Return the best number of slots of each sequence that should have any.

        Where those are too many in all, none has more than fits, nor any but the most promising
        where the fewest are too many. Also returns the tokens to expect of all of them, beside the
        one that each gets in any case.
        """
        price = self._row_price(len(sequence_ids))
        ladder = self._ladder if self._drafting.is_measured else self._ladder[:1]
        least = max(price, LEAST_ACCEPTANCE)
        acceptances = {
            sequence_id: acceptance
            for sequence_id in sequence_ids
            if (acceptance := self._acceptance.get(sequence_id, self._acceptance_of_all)) > least
        }
        if len(acceptances) * ladder[0] > max_slots:
            best = sorted(acceptances, key=acceptances.__getitem__, reverse=True)
            acceptances = {each: acceptances[each] for each in best[: max_slots // ladder[0]]}
        slots = {each: _best(ladder, acceptance, price) for each, acceptance in acceptances.items()}
        for most in reversed(ladder):
            if sum(slots.values()) <= max_slots:
                break
            # Fewer of a sequence are the best again where it may not have as many.
            slots = {each: min(number, most) for each, number in slots.items()}
        return slots, sum(_expected(acceptances[each], slots[each]) for each in slots)

    def _row_price(self, num_sequences: int) -> float:
        """Return how many tokens steps without drafts bring in the time that one more row takes."""
        plain_us = self._plain.step_us(num_sequences)
        token_us = self._drafting.token_us or self._plain.token_us
        return num_sequences * token_us / plain_us if plain_us > 0 else 0.0

    def _pays(self, num_sequences: int, num_slots: int, num_expected: float) -> bool:
        """Return whether a step with drafts is expected to bring tokens faster than one without."""
        if not (self._plain.is_measured and self._drafting.is_measured):
            return True
        plain_us = self._plain.step_us(num_sequences)
        drafting_us = self._drafting.step_us(num_sequences + num_slots)
        return (num_sequences + num_expected) * plain_us > num_sequences * drafting_us

    # ------------------------------------------------------------------ observations

    def observe_drafts(self, drafts: Iterable[tuple[int, int, int]]) -> None:
        """Record what became of the slots of a step.

        Args:
            drafts: (sequence id, tokens drafted, tokens accepted) of each sequence that had slots.
        """
        # A sequence that is being read shows nothing of the drafts to come: the same ones again,
        # unless that takes too long.
        drafted_for = [each for each in drafts if each[1] or not self.has_draft_model]
        self._num_reading_steps += 1
        if not drafted_for and self._num_reading_steps < MOST_READING_STEPS:
            self._steps_to_trial = 0
            return
        self._num_reading_steps = 0
        weight = _WEIGHT_WITH_DRAFT_MODEL if self.has_draft_model else _WEIGHT
        num_accepted = 0
        for sequence_id, drafted, accepted in drafted_for:
            num_accepted += accepted
            self.counters.draft_tokens += drafted
            self.counters.accepted_tokens += accepted
            # Nothing is known of the drafts behind a wrong one.
            num_tried = max(1, min(drafted, accepted + 1))
            share = accepted / num_tried
            known = self._acceptance.get(sequence_id, self._acceptance_of_all)
            self._acceptance[sequence_id] = share + (known - share) * (1 - weight) ** num_tried
            self._acceptance_of_all += _WEIGHT_OF_ALL * (share - self._acceptance_of_all)
        longer = min(2 * self._interval, LONGEST_INTERVAL)
        self._interval = FIRST_INTERVAL if num_accepted else longer
        self._steps_to_trial = self._interval

    def observe_step(self, num_tokens: int, step_us: float, *, has_slots: bool) -> None:
        """Record the time of a step, from the end of the one before or from its own beginning.

        Args:
            num_tokens: that it computed, drafts included.
            step_us: its time.
            has_slots: whether sequences had slots for drafts.
        """
        times = self._drafting if has_slots else self._plain
        if has_slots or num_tokens <= _MOST_STEP_TOKENS:
            if times.is_measured:
                step_us = min(step_us, _OUTLIER * times.step_us(num_tokens))
            times.observe_step(num_tokens, step_us)


def _best(ladder: list[int], acceptance: float, price: float) -> int:
    """Return of which number of slots most is expected, beyond what their rows cost."""
    gains = [_expected(acceptance, each) - price * each for each in ladder]
    return ladder[gains.index(max(gains))]


def _expected(acceptance: float, num_slots: int) -> float:
    """Return how many drafts are expected to be right: a + a^2 + ... (Leviathan 2023, eq. 1)."""
    if acceptance >= 1:
        return num_slots
    return acceptance * (1 - acceptance**num_slots) / (1 - acceptance)
