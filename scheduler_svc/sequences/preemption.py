"""Ways, counters and measured costs of preemption."""

from dataclasses import dataclass

from scheduler_svc.sequences.step_times import StepTimes


@dataclass(slots=True)
class PreemptionCounters:
    """Sums over all preemptions so far.

    Attributes:
        preemptions: how often a group had to give up its blocks.
        swaps: how often its blocks were moved to the host's memory.
        swapped_out_blocks: blocks moved to the host's memory.
        swapped_in_blocks: blocks moved back.
        recomputed_tokens: tokens lost, which are computed again.
    """

    preemptions: int = 0
    swaps: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    recomputed_tokens: int = 0


@dataclass(slots=True)
class PreemptionCosts(StepTimes):
    """Measured prices of moving and of computing.

    The price of a token is what one more costs in a step, which is how recomputed prompts are paid
    for.

    Attributes:
        block_us: time to move one block one way; 0 until measured.
    """

    block_us: float = 0.0

    def observe_swap(self, num_blocks: int, swap_us: float) -> None:
        """Record the time it took to move blocks."""
        measured = swap_us / num_blocks
        self.block_us = measured if not self.block_us else 0.8 * self.block_us + 0.2 * measured

    def moving_is_cheaper(self, num_tokens: int, num_blocks: int, num_sequences: int) -> bool:
        """Return whether to move a group's blocks rather than to compute its tokens again.

        Until both prices are known, groups of several sequences are moved: they share what is moved
        but would each compute their own (Kwon et al. 2023, PagedAttention, section 4.5).
        """
        if not self.block_us or not self.token_us:
            return num_sequences > 1
        return 2 * num_blocks * self.block_us < num_tokens * self.token_us
