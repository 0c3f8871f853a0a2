"""Requests over time: rates, conversations, prompts."""

from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.config import TrafficConfig
from simulator.texts import Library, SimulatedRequest
from simulator.traffic import Traffic
from tests.unit.simulator.setups import TRAFFIC

MAX_MODEL_LEN = 2048
TOKEN_S = 0.01


def make_traffic(config: TrafficConfig = TRAFFIC, seed: int = 3) -> Traffic:
    return Traffic(config, Library(config, seed), MAX_MODEL_LEN, TOKEN_S, seed)


def run(traffic: Traffic, duration_s: float, token_s: float = TOKEN_S) -> list[SimulatedRequest]:
    """Answer every request after as long as its answer takes."""
    requests: list[SimulatedRequest] = []
    under_way: list[tuple[float, SimulatedRequest]] = []
    for interval in range(round(10 * duration_s)):
        now = interval / 10
        under_way.sort()
        while under_way and under_way[0][0] < now:
            end_s, request = under_way.pop(0)
            traffic.answered(request, end_s)
        arrived = traffic.arrivals(now, now + 0.1)
        requests += arrived
        under_way += [(each.arrival_s + token_s * each.num_output_tokens, each) for each in arrived]
    return requests


def test_the_same_seed_makes_the_same_requests() -> None:
    first, second = run(make_traffic(), 8), run(make_traffic(), 8)
    assert first == second
    assert len(first) > 100
    assert run(make_traffic(seed=4), 8) != first


def test_conversations_are_the_same_however_slow_the_answers_are() -> None:
    quick, slow = run(make_traffic(), 8), run(make_traffic(), 8, token_s=0.03)
    lengths = {(each.conversation_id, each.num_conversation_tokens) for each in quick}
    assert {(each.conversation_id, each.num_conversation_tokens) for each in slow} <= lengths
    assert len(slow) < len(quick)  # fewer turns fit into the time


def test_as_many_answers_are_under_way_at_the_peak_as_were_asked_for() -> None:
    config = replace(TRAFFIC, streams=2000, duration_s=20.0, period_s=20.0, burst_factor=1.0)
    requests = run(make_traffic(config), 20)
    changes = [(each.arrival_s, 1) for each in requests]
    changes += [(each.arrival_s + TOKEN_S * each.num_output_tokens, -1) for each in requests]
    under_way = most = 0
    for _, change in sorted(changes):
        under_way += change
        most = max(most, under_way)
    assert most == pytest.approx(2000, rel=0.1)


def test_a_day_has_a_night_and_bursts_are_about_one_document() -> None:
    config = replace(TRAFFIC, streams=3000, duration_s=20.0, period_s=20.0, mean_turns=1.0)
    traffic = make_traffic(config)
    requests = run(traffic, 20)
    night = sum(each.arrival_s < 2 or each.arrival_s > 18 for each in requests)
    noon = sum(8 < each.arrival_s < 12 for each in requests)
    assert night < 0.7 * noon
    assert traffic.curve.bursts
    burst = max(traffic.curve.bursts, key=lambda each: min(each.end_s, 20.0) - each.start_s)
    inside = [each for each in requests if burst.start_s <= each.arrival_s < burst.end_s]
    outside = [each for each in requests if traffic.curve.burst(each.arrival_s) is None]
    share = sum(each.document_id == burst.document_id for each in inside) / len(inside)
    usual = sum(each.document_id == burst.document_id for each in outside) / len(outside)
    assert share > usual + 0.2


def test_a_turn_begins_with_all_turns_before_it() -> None:
    library = Library(TRAFFIC, 3)
    by_conversation: dict[int, list[SimulatedRequest]] = {}
    for request in run(make_traffic(), 8):
        by_conversation.setdefault(request.conversation_id, []).append(request)
    num_later = 0
    for turns in by_conversation.values():
        for before, after in pairwise(turns):
            num_later += 1
            prompt = library.prompt(before)
            earlier = prompt + [0] * before.num_output_tokens
            assert library.prompt(after)[: len(earlier)] == earlier
            assert library.num_prompt_tokens(after) == len(library.prompt(after)) > len(earlier)
    assert num_later > 20


def test_prompts_begin_alike_as_far_as_they_are_made_of_the_same_texts() -> None:
    library = Library(TRAFFIC, 3)

    def common(first: SimulatedRequest, second: SimulatedRequest) -> int:
        pairs = zip(library.prompt(first), library.prompt(second), strict=False)
        return next(index for index, (a, b) in enumerate(pairs) if a != b)

    request = SimulatedRequest(0, 1, 2, 10, 50, 5, 0.0)
    system = library.system_prompt_lengths[2]
    document = library.document_lengths[10]
    # A text begins with its kind, and then its number.
    assert common(request, request._replace(conversation_id=7)) == system + document + 1
    assert common(request, request._replace(document_id=18)) == system + 1
    assert common(request, request._replace(tenant_id=3)) == 1
    assert common(request, request._replace(document_id=None)) == system


def test_no_conversation_outgrows_the_model() -> None:
    config = replace(TRAFFIC, mean_turns=30.0, think_s=0.01)
    library = Library(config, 3)
    requests = run(make_traffic(config), 8, token_s=0.0)
    lengths = [library.num_prompt_tokens(each) + each.num_output_tokens for each in requests]
    assert 0.8 * MAX_MODEL_LEN < max(lengths) <= MAX_MODEL_LEN
