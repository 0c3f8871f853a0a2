"""When requests are sent."""

import math

import numpy as np
import pytest

from launch.bench.arrivals import arrival_times, ramp_up_times


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_all_at_once_is_at_the_start() -> None:
    assert arrival_times(3, math.inf, 1.0, rng()).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.1, 1.0, 10.0, math.inf])
def test_a_seed_gives_the_same_times_and_any_seed_the_same_rate(burstiness: float) -> None:
    first = arrival_times(200, 4.0, burstiness, rng(1))
    assert first.tolist() == arrival_times(200, 4.0, burstiness, rng(1)).tolist()
    assert (np.diff(first) >= 0).all()
    for seed in range(3):
        assert arrival_times(200, 4.0, burstiness, rng(seed))[-1] == pytest.approx(50.0)
    if burstiness != math.inf:
        assert first.tolist() != arrival_times(200, 4.0, burstiness, rng(2)).tolist()


def test_burstiness_is_the_shape_of_the_gaps() -> None:
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    for burstiness in (0.25, 1.0, 4.0):
        gaps = np.diff(arrival_times(50_000, 1.0, burstiness, rng()))
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    even = np.diff(arrival_times(10, 2.0, math.inf, rng()))
    assert even == pytest.approx(np.full(9, 0.5))


def test_gaps_too_small_for_a_number_are_none() -> None:
    assert arrival_times(3, 1.0, 1e-300, rng())[0] >= 0


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    linear = np.diff(ramp_up_times(3, "linear", 1.0, 4.0, math.inf, rng()), prepend=0.0)
    assert linear == pytest.approx([1.0, 1 / 2.5, 1 / 4.0])
    exponential = np.diff(ramp_up_times(3, "exponential", 1.0, 4.0, math.inf, rng()), prepend=0.0)
    assert exponential == pytest.approx([1.0, 1 / 2.0, 1 / 4.0])
    assert ramp_up_times(1, "linear", 2.0, 4.0, math.inf, rng()).tolist() == [0.5]
