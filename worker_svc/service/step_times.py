"""How long a step may take before it counts as hanging, from how long others took."""

from quire.contract.workers import LONGEST_STEP_S

# Nothing is known of the first steps: those of a large model on slow cores among them. They also
# load code and record graphs, which later ones do not.
NUM_FIRST_STEPS = 16
SHORTEST_LIMIT_S = 2.0
PATIENCE = 3.0
# A step that was slow once is forgotten over some hundreds of steps of its size.
DECAY = 0.99


class StepTimes:
    """The slowest recent step of each size, sizes being powers of two of its tokens.

    A worker keeps them, not its scheduler: the next scheduler knows nothing of the step that hangs
    as it starts, and has to know its limit.
    """

    def __init__(self) -> None:
        self._slowest_s: dict[int, float] = {}
        self._num_observed = 0

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Count a step that has ended."""
        self._num_observed += 1
        size = num_tokens.bit_length()
        self._slowest_s[size] = max(elapsed_s, DECAY * self._slowest_s.get(size, 0.0))

    def limit_s(self, num_tokens: int) -> float:
        """Return the longest time in seconds that a step of `num_tokens` tokens may take.

        That is three times the slowest of its size or less, at least 2 s and at most
        LONGEST_STEP_S. A step larger than any before is taken to be slower in proportion.
        """
        size = num_tokens.bit_length()
        if self._num_observed < NUM_FIRST_STEPS:
            return LONGEST_STEP_S
        is_new = size not in self._slowest_s
        predicted_s = max(
            seconds * 2.0 ** max(0, size - other if is_new else 0)
            for other, seconds in self._slowest_s.items()
            if other <= max(size, min(self._slowest_s))
        )
        return min(LONGEST_STEP_S, max(SHORTEST_LIMIT_S, PATIENCE * predicted_s))
