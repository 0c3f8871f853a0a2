"""Predicted times to the first token, and what is refused by them."""

import pytest

from quire.contract.errors import UnreachableDeadlineError
from quire.contract.sampling_params import SamplingParams
from scheduler_svc.policy.first_token_times import OUTCOME_LIFE_S, FirstTokenTimes, Prediction
from scheduler_svc.policy.queues import Queues
from tests.unit.scheduler.factories import Cell, make_params, make_prompt


def measured(step_us: float = 1000.0) -> FirstTokenTimes:
    times = FirstTokenTimes(max_num_batched_tokens=64)
    for num_tokens in (8, 16, 32, 64) * 10:
        times.observe_step(num_tokens, step_us * num_tokens, Queues(), 0.0)
    return times


def test_nothing_is_refused_before_anything_is_measured() -> None:
    times = FirstTokenTimes(max_num_batched_tokens=64)
    assert times.predict(1000, num_ahead=99, num_running=8) == 0.0
    times.prediction(0.0, SamplingParams(max_tokens=100, ignore_eos=True), 0, 0.0).check(0.0)


def test_a_prompt_takes_the_steps_it_needs() -> None:
    assert measured().predict(64, 0, 0) == pytest.approx(0.064, rel=0.01)
    assert measured().predict(640, 0, 0) == pytest.approx(0.64, rel=0.01)


def test_the_queue_moves_as_fast_as_it_has_moved() -> None:
    cell, times, now = Cell(max_num_seqs=1), FirstTokenTimes(max_num_batched_tokens=64), 0.0
    for _ in range(9):
        cell.add(make_prompt(4), make_params(max_tokens=5))
    while len(cell.scheduler.queues.waiting) > 2:
        cell.step()
        now += 0.5
        times.observe_step(4, 500_000, cell.scheduler.queues, now)
    # Five tokens each, one after another.
    in_front = times.predict(4, 0, 1)
    assert times.predict(4, 4, 1) - in_front == pytest.approx(4 * 2.5, rel=0.25)


def test_only_tokens_that_are_sure_to_come_count() -> None:
    times = measured(step_us=10_000)
    short = times.prediction(1.0, make_params(max_tokens=100, ignore_eos=False), 0, 0.0)
    sure = times.prediction(1.0, make_params(max_tokens=100, ignore_eos=True), 0, 0.0)
    params = make_params(max_tokens=100, ignore_eos=False, min_tokens=50)
    least = times.prediction(1.0, params, 0, 0.0)
    assert short.p50_s == 1.0 < least.p50_s < sure.p50_s


def test_predictions_are_corrected_by_what_came_of_them() -> None:
    times = measured(step_us=1)
    for measured_s in (1.0,) * 90 + (8.0,) * 10:
        times.observe_first_token(0.5, measured_s, now=10.0)
    prediction = times.prediction(0.5, make_params(max_tokens=1), 0, now=20.0)
    assert prediction.p50_s == pytest.approx(1.0, rel=0.01)
    assert prediction.p99_s == pytest.approx(8.0, rel=0.01)
    # A burst that is over refuses nothing.
    later = times.prediction(0.5, make_params(max_tokens=1), 0, now=10.0 + OUTCOME_LIFE_S)
    assert later.p99_s == later.p50_s == 0.5


def test_a_queue_that_has_not_moved_yet_predicts_nothing() -> None:
    assert measured().predict(64, num_ahead=3, num_running=1) == 0.0


def test_a_refusal_names_limit_and_value_and_when_to_come_again() -> None:
    prediction = Prediction(p50_s=2.0, p99_s=3.5)
    prediction.check(3.5)
    with pytest.raises(UnreachableDeadlineError, match=r"3\.500 s.*2\.000 s.*got 0\.500 s") as info:
        prediction.check(0.5)
    assert info.value.retry_after_ms == 3000
