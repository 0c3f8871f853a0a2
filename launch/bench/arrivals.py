"""When requests are sent."""

import math

import numpy as np
import numpy.typing as npt


def arrival_times(
    count: int,
    rate: float,
    burstiness: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Return when each of `count` requests is sent, in seconds since the start.

    Times between requests are gamma-distributed with a mean of 1 / `rate` and the shape
    `burstiness`: 1 makes them a Poisson process. They are then scaled so that the last request
    comes at count / rate: two seeds differ in the order of gaps, not in the load.

    Args:
        count: requests, at least 1.
        rate: requests a second; inf sends all at once.
        burstiness: above 0; inf makes all gaps equal.
        rng: draws the gaps.

    Returns:
        [count] ascending.
    """
    if math.isinf(rate):
        return np.zeros(count)
    times = np.cumsum(_gaps(np.full(count, rate), burstiness, rng))
    # All gaps of a small shape may round to nothing.
    return times * (count / rate / times[-1]) if times[-1] > 0 else times


def ramp_up_times(
    count: int,
    strategy: str,
    start_rate: float,
    end_rate: float,
    burstiness: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Return when each request is sent while the rate grows from request to request.

    Args:
        count: requests, at least 1.
        strategy: "linear" adds the same to the rate from one request to the next, "exponential"
            multiplies it by the same.
        start_rate: requests a second of the first gap.
        end_rate: of the last one.
        burstiness: as of `arrival_times`.
        rng: draws the gaps.

    Returns:
        [count] ascending.
    """
    progress = np.arange(count) / max(count - 1, 1)
    if strategy == "linear":
        rates = start_rate + (end_rate - start_rate) * progress
    else:
        rates = start_rate * (end_rate / start_rate) ** progress
    times: npt.NDArray[np.float64] = np.cumsum(_gaps(rates, burstiness, rng))
    return times


def _gaps(
    rates: npt.NDArray[np.float64], burstiness: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    if math.isinf(burstiness):
        return 1 / rates
    return rng.gamma(burstiness, 1 / (rates * burstiness))
