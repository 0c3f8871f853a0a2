"""What a router counts of the requests of a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """What became of the requests of a model, since the router started.

    Attributes:
        num_finished: that came to their end.
        num_failed: that failed, or were refused once their model was known.
        whole_s: time that finished ones took in all.
        num_queued: that a scheduler took.
        queue_s: time until then, of all of them.
        computed_s: time after then, of finished ones.
        last_s: when one last ended, in seconds since 1970; 0 for never.
    """

    num_finished: int = 0
    num_failed: int = 0
    whole_s: float = 0.0
    num_queued: int = 0
    queue_s: float = 0.0
    computed_s: float = 0.0
    last_s: float = 0.0
