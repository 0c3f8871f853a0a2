"""Where the time of a request went: parts that add up to the whole."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Of one request, in microseconds. All fields but the first are parts of it.

    Attributes:
        total_us: from the request's arrival at the router to the handing over of its last message.
        router_us: checking it and choosing a cell.
        tokenize_us: from text to tokens, the wait for a thread included.
        wire_us: between router and scheduler, both ways, with the waits of either process before it
            writes or reads.
        queue_step_us: queued until the next step could be scheduled, with room for it.
        queue_blocks_us: queued for want of free blocks.
        queue_seqs_us: queued because max_num_seqs sequences ran.
        queue_tokens_us: queued because steps had max_num_batched_tokens tokens without it.
        not_ready_us: no cell was connected, or its workers were lost.
        preempted_us: preempted, until it ran again.
        prefill_us: from the first step it was part of until its first token; again after each
            preemption.
        decode_us: from token to token, until the last one.
        recovering_us: after the last word from a cell that was lost, until it was submitted again.
        unreported_us: at a cell that was not asked for a last word: aborted, or turned away.
        delivery_us: from the last word of the cell to the client's last message.
    """

    total_us: int = 0
    router_us: int = 0
    tokenize_us: int = 0
    wire_us: int = 0
    queue_step_us: int = 0
    queue_blocks_us: int = 0
    queue_seqs_us: int = 0
    queue_tokens_us: int = 0
    not_ready_us: int = 0
    preempted_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    recovering_us: int = 0
    unreported_us: int = 0
    delivery_us: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Microseconds of each part, by the name of its field."""
        return {name: getattr(self, name) for name in PARTS}


PARTS = tuple(each.name for each in fields(TimeBreakdown))[1:]
