"""How long a step may run before its worker counts as hung."""

import pytest

from quire.contract.workers import LONGEST_STEP_S
from worker_svc.service.step_times import NUM_FIRST_STEPS, StepTimes


def measured(*steps: tuple[int, float]) -> StepTimes:
    times = StepTimes()
    for _ in range(NUM_FIRST_STEPS):
        for num_tokens, elapsed_s in steps:
            times.observe(num_tokens, elapsed_s)
    return times


def test_the_first_steps_say_nothing_of_later_ones() -> None:
    times = StepTimes()
    for _ in range(NUM_FIRST_STEPS - 1):
        times.observe(8, 0.01)
        assert times.limit_s(8) == LONGEST_STEP_S
    times.observe(8, 0.01)
    assert times.limit_s(8) == 2.0


@pytest.mark.parametrize(
    ("num_tokens", "limit_s"), [(1, 2.0), (8, 2.0), (500, 6.0), (1000, 12.0), (2000, 24.0)]
)
def test_a_step_has_three_times_the_slowest_of_its_size_and_larger_ones_in_proportion(
    num_tokens: int, limit_s: float
) -> None:
    times = measured((1, 0.001), (8, 0.004), (500, 2.0))
    assert times.limit_s(num_tokens) == pytest.approx(limit_s)


def test_a_slow_step_is_forgotten_and_none_has_longer_than_the_longest() -> None:
    times = measured((500, 2.0))
    assert times.limit_s(10**6) == LONGEST_STEP_S
    for _ in range(1000):
        times.observe(500, 0.01)
    assert times.limit_s(500) == 2.0
