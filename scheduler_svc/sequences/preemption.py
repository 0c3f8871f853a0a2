"""Ways, counters and measured costs of preemption."""

from dataclasses import dataclass

# A step's weight in the averages halves every so many steps.
_HALF_LIFE_STEPS = 200
_DECAY = 0.5 ** (1 / _HALF_LIFE_STEPS)
# Below this spread of step sizes, their slope is noise.
_LEAST_SPREAD_TOKENS = 4.0


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
class PreemptionCosts:
    """Measured prices of moving and of computing.

    The price of a token is the slope of step time over step size (least squares with decaying
    weights): what one more token in a step costs, which is how recomputed prompts are paid for.

    Attributes:
        block_us: time to move one block one way; 0 until measured.
    """

    block_us: float = 0.0
    _weight: float = 0.0
    _mean_tokens: float = 0.0
    _mean_us: float = 0.0
    _covariance: float = 0.0
    _variance: float = 0.0

    def observe_step(self, num_tokens: int, model_us: float) -> None:
        """Record the time of a step's forward pass."""
        self._weight = self._weight * _DECAY + 1
        share = 1 / self._weight
        tokens_off, us_off = num_tokens - self._mean_tokens, model_us - self._mean_us
        self._mean_tokens += share * tokens_off
        self._mean_us += share * us_off
        self._covariance = (1 - share) * (self._covariance + share * tokens_off * us_off)
        self._variance = (1 - share) * (self._variance + share * tokens_off**2)

    def observe_swap(self, num_blocks: int, swap_us: float) -> None:
        """Record the time it took to move blocks."""
        measured = swap_us / num_blocks
        self.block_us = measured if not self.block_us else 0.8 * self.block_us + 0.2 * measured

    @property
    def token_us(self) -> float:
        """Time that one more token adds to a step; 0 until steps of different sizes were seen."""
        if self._variance < _LEAST_SPREAD_TOKENS**2:
            return 0.0
        return max(0.0, self._covariance / self._variance)

    def moving_is_cheaper(self, num_tokens: int, num_blocks: int, num_sequences: int) -> bool:
        """Return whether to move a group's blocks rather than to compute its tokens again.

        Until both prices are known, groups of several sequences are moved: they share what is moved
        but would each compute their own (Kwon et al. 2023, PagedAttention, section 4.5).
        """
        if not self.block_us or not self.token_us:
            return num_sequences > 1
        return 2 * num_blocks * self.block_us < num_tokens * self.token_us
