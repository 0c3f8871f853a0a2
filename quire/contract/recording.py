"""What a scheduler records of its steps, for study and to be replayed."""

from dataclasses import dataclass
from typing import TypeAlias

from quire.contract.steps import SchedulerOutputs, StepResult
from quire.contract.workers import CacheSpec, HostCache, LoadRequest, LoadResponse


@dataclass(frozen=True, slots=True)
class EpochHeader:
    """How workers were formed: all that a worker needs to be given the same orders.

    Attributes:
        version: of the software.
        unix_ns: when the epoch began, in nanoseconds since 1970.
        file_index: files of this epoch before this one.
        has_tokens: whether tokens, sampling parameters and log-probabilities are recorded; if not,
            each token is 0.
        load: as sent to rank 0; its epoch is that of the steps.
        loaded: with the max_model_len that the cache holds.
        cache: of each rank; keeps its contents where the scheduler has adopted any.
        host_cache: the same on every rank.
        previous_epoch: the largest that the workers had seen before.
        previous_step_id: the last step of it that all of them had run.
    """

    version: str
    unix_ns: int
    file_index: int
    has_tokens: bool
    load: LoadRequest
    loaded: LoadResponse
    cache: CacheSpec
    host_cache: HostCache
    previous_epoch: int
    previous_step_id: int

    @property
    def epoch(self) -> int:
        """The epoch of the steps that follow."""
        return self.load.meeting.epoch


# Orders that are yet to be written are the serialised ExecuteRequest that the workers were sent:
# lists that they were made of belong to the scheduler, and grow.
Content: TypeAlias = EpochHeader | SchedulerOutputs | StepResult | bytes


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file.

    Attributes:
        monotonic_ns: of the scheduler's machine, when it sent or received the content.
        num_dropped: records between the one before and this that are missing.
        content: the header of a file, a step's orders, or its result.
    """

    monotonic_ns: int
    num_dropped: int
    content: Content
