"""Other workers for a cell that goes on serving: how far that is."""

from dataclasses import dataclass
from enum import Enum, auto


class ResizePhase(Enum):
    """What has begun, or ended."""

    LOADING = auto()
    SWITCHED = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class ResizeProgress:
    """How far a resize is.

    Attributes:
        phase: what has begun.
        num_moved: requests that ran when the workers changed.
        gap_s: the longest time that one of them waited for its next token; 0 before DONE.
    """

    phase: ResizePhase
    num_moved: int = 0
    gap_s: float = 0.0
