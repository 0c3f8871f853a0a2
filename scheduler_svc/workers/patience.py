"""How much longer than its limit a step may run, since others were cut off."""

from quire.contract.workers import LONGEST_STEP_S, RunningStep

# Forgotten over some hundreds of steps.
DECAY = 0.99


class Patience:
    """Gives steps twice the time after one was cut off: else it might be for ever.

    Workers report the limit of a step. One that was cut off ends, and its successor knows nothing
    of that step; the scheduler does.
    """

    def __init__(self) -> None:
        self._factor = 1.0

    def ended(self) -> None:
        """Count a step that has ended."""
        self._factor = max(1.0, DECAY * self._factor)

    def cut_off(self) -> None:
        """Count a step that was taken to hang."""
        self._factor *= 2

    def limit_s(self, step: RunningStep) -> float:
        """Return how long a step under way may run, in seconds: at most LONGEST_STEP_S."""
        # Workers of the release before report no limit.
        reported_s = 1e-3 * step.limit_ms or LONGEST_STEP_S
        return min(LONGEST_STEP_S, self._factor * reported_s)
