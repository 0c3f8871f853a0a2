"""How long a step of so many tokens takes, as measured."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepTimes:
    """Step time as a line over step size: least squares with decaying weights.

    Attributes:
        least_spread_tokens: below this spread of step sizes, their slope is noise.
        half_life_steps: a step's weight in the averages halves every so many steps.
    """

    least_spread_tokens: float = 4.0
    half_life_steps: float = 200.0
    _weight: float = 0.0
    _mean_tokens: float = 0.0
    _mean_us: float = 0.0
    _covariance: float = 0.0
    _variance: float = 0.0

    def observe_step(self, num_tokens: int, step_us: float) -> None:
        """Record the time of a step."""
        self._weight = self._weight * 0.5 ** (1 / self.half_life_steps) + 1
        share = 1 / self._weight
        tokens_off, us_off = num_tokens - self._mean_tokens, step_us - self._mean_us
        self._mean_tokens += share * tokens_off
        self._mean_us += share * us_off
        self._covariance = (1 - share) * (self._covariance + share * tokens_off * us_off)
        self._variance = (1 - share) * (self._variance + share * tokens_off**2)

    @property
    def is_measured(self) -> bool:
        """Whether any step was observed."""
        return self._weight > 0

    @property
    def token_us(self) -> float:
        """Time that one more token adds to a step; 0 until steps of different sizes were seen."""
        if self._variance < self.least_spread_tokens**2:
            return 0.0
        return max(0.0, self._covariance / self._variance)

    def step_us(self, num_tokens: int) -> float:
        """Return the time to expect of a step."""
        return self._mean_us + self.token_us * (num_tokens - self._mean_tokens)
