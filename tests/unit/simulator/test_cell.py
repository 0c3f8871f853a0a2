"""One cell in simulated time: when things happen, and that nothing is lost."""

from dataclasses import replace

import pytest

from simulator.cell import SimulatedCell
from simulator.config import TrafficConfig
from simulator.cost_model import CostModel
from simulator.messages import Answered, SimulatedSubmission
from simulator.texts import Library, SimulatedRequest
from tests.unit.simulator.setups import CELL, COST_MODEL, TRAFFIC

LIBRARY = Library(TRAFFIC, 1)
# Every step takes 10 ms, and nothing else takes any time.
TEN_MS = CostModel(
    "steady", "made up", base_us=10_000, dispatch_us=0.0, request_us=0.0, answer_us=0.0
)


def make_request(number: int, num_tokens: int, tokens: int = 40) -> SimulatedRequest:
    return SimulatedRequest(number, number, 0, None, tokens, num_tokens, 0.0)


def run(cell: SimulatedCell, until_s: float = 60.0) -> list[Answered]:
    now = 0.0
    while cell.num_requests and now < until_s:
        now += 0.1
        cell.run_until(now)
    return cell.take_events().answered


def test_steps_follow_one_another_without_a_gap() -> None:
    cell = SimulatedCell(0, replace(CELL, cost_model=TEN_MS), LIBRARY)
    cell.submit(SimulatedSubmission(make_request(1, 5), 0.0123))
    (answered,) = run(cell)
    # The prompt takes one step, each further token one.
    assert answered.first_token_s == pytest.approx(0.0223)
    assert answered.end_s == pytest.approx(0.0623)
    assert cell.usage.num_steps == 5
    assert cell.usage.num_tokens == 5


@pytest.mark.parametrize(("max_steps_in_flight", "first_token_s"), [(1, 0.03), (2, 0.04)])
def test_what_comes_while_steps_run_waits_for_those_that_are_sent(
    max_steps_in_flight: int, first_token_s: float
) -> None:
    config = replace(CELL, cost_model=TEN_MS, max_steps_in_flight=max_steps_in_flight)
    cell = SimulatedCell(0, config, LIBRARY)
    cell.submit(SimulatedSubmission(make_request(1, 20), 0.0))
    # During the second step; with two in flight, the third is with the workers already.
    cell.submit(SimulatedSubmission(make_request(2, 2), 0.015))
    answers = {each.submission.request.request_id: each for each in run(cell)}
    assert answers[2].first_token_s == pytest.approx(first_token_s)


def test_a_step_takes_what_its_tokens_cost() -> None:
    cell = SimulatedCell(0, replace(CELL, max_num_batched_tokens=64), LIBRARY)
    request = make_request(1, 3, tokens=100)
    prompt = LIBRARY.num_prompt_tokens(request)
    cell.submit(SimulatedSubmission(request, 0.0))
    (answered,) = run(cell)
    model, end_us = COST_MODEL, COST_MODEL.dispatch_us
    for start in range(0, prompt, 64):
        end = min(start + 64, prompt)
        num_pairs = sum(range(start + 1, end + 1))
        end_us += model.base_us + model.token_us * (end - start) + model.sequence_us
        end_us += model.context_us * end + model.pair_us * num_pairs
    assert answered.first_token_s == pytest.approx((end_us + model.answer_us) / 1e6)
    for length in (prompt + 1, prompt + 2):
        end_us += model.base_us + model.token_us + model.sequence_us + model.context_us * length
    assert answered.end_s == pytest.approx((end_us + model.answer_us) / 1e6)


def test_requests_that_share_a_prefix_compute_it_once() -> None:
    cell = SimulatedCell(0, CELL, LIBRARY)
    for number in range(10):
        request = make_request(number, 4)._replace(document_id=3)
        cell.submit(SimulatedSubmission(request, number * 0.2))
    assert len(run(cell)) == 10
    shared = LIBRARY.system_prompt_lengths[0] + LIBRARY.document_lengths[3]
    found = cell.usage.num_tokens_found
    assert 9 * (shared - CELL.block_size) <= found <= 9 * shared
    heartbeat = cell.heartbeat()
    assert heartbeat.added and not heartbeat.removed
    assert not cell.heartbeat().added
    cell.check_idle()


def test_an_overfull_cell_preempts_and_answers_all_the_same() -> None:
    traffic = replace(TRAFFIC, num_tenants=1)
    cell = SimulatedCell(0, replace(CELL, num_blocks=40), Library(traffic, 1))
    for number in range(12):
        cell.submit(SimulatedSubmission(make_request(number, 150), number * 0.001))
    answers = run(cell)
    assert sorted(each.submission.request.request_id for each in answers) == list(range(12))
    assert cell.usage.num_preemptions > 0
    assert cell.usage.num_recomputed_tokens > 0
    cell.check_idle()


def test_another_cell_goes_on_with_what_one_leaves() -> None:
    first, second = (SimulatedCell(number, CELL, LIBRARY) for number in range(2))
    # One is under way when its cell goes, one has not begun, one has not arrived.
    first.submit(SimulatedSubmission(make_request(1, 60), 0.0))
    first.submit(SimulatedSubmission(make_request(2, 5, tokens=1500), 0.19))
    first.submit(SimulatedSubmission(make_request(3, 5), 0.25))
    first.run_until(0.2)
    started = first.take_events().started
    left = {each.request.request_id: each for each in first.unfinished()}
    assert started == [1]
    assert 5 < left[1].num_output_tokens < 60
    assert left[1].first_token_s is not None and left[1].first_token_s < 0.1
    assert left[2].num_output_tokens == left[3].num_output_tokens == 0
    assert all(each.num_moves == 1 for each in left.values())
    for submission in left.values():
        second.submit(submission._replace(at_s=0.3))
    answers = {each.submission.request.request_id: each for each in run(second)}
    assert answers.keys() == {1, 2, 3}
    assert answers[1].first_token_s == left[1].first_token_s
    # It computes only the tokens that were missing.
    assert second.usage.num_tokens == (60 - left[1].num_output_tokens) + 5 + 5
    second.check_idle()


def test_a_library_is_the_same_in_every_process() -> None:
    config = TrafficConfig(streams=1)
    assert Library(config, 9).document_lengths == Library(config, 9).document_lengths
    assert Library(config, 9).document_lengths != Library(config, 10).document_lengths
