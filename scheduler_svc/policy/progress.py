"""What a step means for the requests: their tokens, their ends, and where their time has gone."""

from dataclasses import dataclass, field
from enum import StrEnum

from quire.contract.outputs import FinishReason, Hypothesis, TokenLogprobs
from quire.contract.steps import PromptLogprobs
from quire.contract.time_breakdown import TimeBreakdown


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """A sequence that ended with a step.

    Attributes:
        group_id: of its group.
        sequence_index: number within the group.
        finish_reason: why it ended.
    """

    group_id: int
    sequence_index: int
    finish_reason: FinishReason


class Phase(StrEnum):
    """What a group is doing."""

    QUEUED = "queued"
    PREEMPTED = "preempted"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Interval:
    """A phase of a group that is over.

    Attributes:
        phase: what the group did.
        start_s: when that began, in seconds on the clock of the scheduler's caller.
        end_s: when that ended.
    """

    phase: Phase
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class GroupTime:
    """Where the time of a group that has ended went.

    Attributes:
        breakdown: how much went to each phase and to each reason to wait.
        intervals: its phases in order.
    """

    breakdown: TimeBreakdown
    intervals: tuple[Interval, ...] = ()


@dataclass(slots=True)
class Progress:
    """What a step means for the requests.

    Attributes:
        group_ids: groups of the sequences that got a token; parallel to the next two.
        sequence_indices: of those sequences.
        token_ids: the tokens.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
        prompt_logprobs: (group, what was computed of its prompt).
        finished: sequences that ended.
        hypotheses: (group, texts) of the beam searches that ended, best first.
        ended_group_ids: groups none of whose sequences goes on.
        times: of the groups that ended, by their ids.
        time_breakdowns: of the groups that asked for one and got a token or ended, by their ids.
        vectors: (group, vector) of those that asked for one, which have ended.
        cached_tokens: (group, tokens of its prompt that were in the cache when it began).
    """

    group_ids: list[int] = field(default_factory=list)
    sequence_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, PromptLogprobs]] = field(default_factory=list)
    finished: list[FinishedSequence] = field(default_factory=list)
    hypotheses: list[tuple[int, list[Hypothesis]]] = field(default_factory=list)
    ended_group_ids: list[int] = field(default_factory=list)
    times: dict[int, GroupTime] = field(default_factory=dict)
    time_breakdowns: dict[int, TimeBreakdown] = field(default_factory=dict)
    vectors: list[tuple[int, bytes]] = field(default_factory=list)
    cached_tokens: list[tuple[int, int]] = field(default_factory=list)
