"""Fair shares of tenants: who starts next, what is charged, and what is forgotten."""

from collections import Counter
from itertools import pairwise, product
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.contract.errors import InvalidRequestError
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import MAX_WEIGHT, MIN_WEIGHT, Submission
from scheduler_svc.policy.group_queue import queue_order
from scheduler_svc.policy.tenants import MAX_IDLE
from tests.unit.scheduler.factories import Cell, make_params, make_prompt

# Of a group that comes after all others.
LAST = queue_order(0.0, 0, 60.0, 1000)


def started(cell: Cell) -> list[int]:
    """Run to the end and return the groups in the order of their first tokens."""
    order: dict[int, None] = {}
    while cell.scheduler.has_unfinished:
        cell.step()
        order.update(dict.fromkeys(group for group, tokens in cell.tokens.items() if tokens))
    return list(order)


requests = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "c"]),
        st.integers(1, 20),
        st.integers(1, 6),
        st.integers(-2, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(requests, st.integers(1, 3), st.integers(8, 24))
def test_within_a_tenant_the_order_is_that_of_arrival_and_priority(
    requests: list[tuple[str, int, int, int]], max_num_seqs: int, num_blocks: int
) -> None:
    cell = Cell(max_num_seqs=max_num_seqs, num_blocks=num_blocks)
    rank: dict[int, tuple[float, int]] = {}
    tenant_of: dict[int, str] = {}
    for tenant, num_prompt, num_output, priority in requests:
        params = make_params(max_tokens=num_output)
        group_id = cell.add(make_prompt(num_prompt), params, tenant=tenant, priority=priority)
        rank[group_id] = queue_order(0.0, priority, 60.0, group_id)
        tenant_of[group_id] = tenant
    order = started(cell)
    assert sorted(order) == sorted(rank)
    for tenant in set(tenant_of.values()):
        own = [rank[group_id] for group_id in order if tenant_of[group_id] == tenant]
        # Groups of one step have their first tokens together, in any order.
        assert max_num_seqs > 1 or own == sorted(own)


@given(requests)
def test_the_order_of_tenants_changes_no_token(requests: list[tuple[str, int, int, int]]) -> None:
    outputs = []
    for has_tenants in (False, True):
        cell = Cell(max_num_seqs=2, num_blocks=16)
        for tenant, num_prompt, num_output, priority in requests:
            name = tenant if has_tenants else ""
            params = make_params(max_tokens=num_output)
            cell.add(make_prompt(num_prompt), params, tenant=name, priority=priority)
        cell.run()
        outputs.append(cell.tokens)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("weight", "least", "most"), [(1.0, 0.9, 1.1), (3.0, 2.7, 3.3)])
def test_tenants_get_tokens_by_their_weights(weight: float, least: float, most: float) -> None:
    cell = Cell(max_num_seqs=4, num_blocks=256)
    tenant_of = {}
    for _ in range(120):
        # The flood of the one is longer in number and length.
        for name, num_prompt, num_output in (("few", 4, 6), ("many", 9, 8), ("many", 9, 8)):
            params = make_params(max_tokens=num_output)
            own = weight if name == "few" else 1.0
            group_id = cell.add(make_prompt(num_prompt), params, tenant=name, tenant_weight=own)
            tenant_of[group_id] = name, num_prompt
    served: Counter[str] = Counter()
    while all(
        tenant in {each.tenant for each in cell.scheduler.queues.waiting}
        for tenant in ("few", "many")
    ):
        cell.step()
    for group_id, tokens in cell.tokens.items():
        if tokens:
            name, num_prompt = tenant_of[group_id]
            served[name] += num_prompt + len(tokens) - 1
    assert least < served["few"] / served["many"] < most


def test_a_newcomer_starts_next_beside_a_flood_and_preempts_nothing() -> None:
    cell = Cell(max_num_seqs=2)
    flood = [cell.add(make_prompt(8), make_params(max_tokens=9), tenant="flood") for _ in range(20)]
    for _ in range(3):
        cell.step()
    newcomer = cell.add(make_prompt(8), make_params(max_tokens=2), tenant="new", priority=-9)
    order = started(cell)
    # With one of the flood: two places were free at once.
    assert order[:2] == flood[:2]
    assert set(order[2:4]) == {flood[2], newcomer}
    assert cell.scheduler.counters.preemptions == 0


def test_a_newcomer_starts_as_soon_as_a_place_is_free() -> None:
    cell = Cell(max_num_seqs=1)
    flood = [cell.add(make_prompt(8), make_params(max_tokens=4), tenant="flood") for _ in range(9)]
    while flood[0] not in cell.ended:
        cell.step()
    newcomer = cell.add(make_prompt(8), make_params(max_tokens=4), tenant="new")
    assert started(cell)[:3] == [flood[0], newcomer, flood[1]]


def test_a_tenant_gets_no_credit_for_the_time_it_was_away() -> None:
    cell = Cell(max_num_seqs=1)
    for _ in range(30):
        cell.add(make_prompt(8), make_params(max_tokens=4), tenant="steady")
    for _ in range(60):
        cell.step()
    back = [cell.add(make_prompt(8), make_params(max_tokens=4), tenant="back") for _ in range(9)]
    order = started(cell)
    places = [order.index(group_id) for group_id in back]
    assert all(later - earlier == 2 for earlier, later in pairwise(places))


def test_what_was_charged_once_is_not_charged_again() -> None:
    cell = Cell(max_num_seqs=4, num_blocks=64)
    waiting = cell.scheduler.queues.waiting
    moved = cell.add(
        make_prompt(40), make_params(max_tokens=6), (5, 6), tenant="moved", was_queued=True
    )
    fresh = cell.add(make_prompt(40), make_params(max_tokens=6), tenant="fresh")
    cell.step()
    cell.lose_workers()
    cell.run()
    assert {moved, fresh} <= cell.ended
    # Of six tokens the last is not computed; two were computed elsewhere.
    assert {name: tenant.counter for name, tenant in waiting._tenants.items()} == {
        "moved": pytest.approx(3, abs=1),
        "fresh": pytest.approx(45, abs=1),
    }


def test_tenants_that_are_away_are_forgotten_in_time() -> None:
    cell = Cell()
    for number in range(MAX_IDLE + 50):
        cell.scheduler.abort(cell.add([5], tenant=f"t{number}"))
    cell.scheduler.check_invariants()
    assert len(cell.scheduler.queues.waiting._tenants) == MAX_IDLE


def test_a_higher_priority_is_ahead_of_those_that_wait() -> None:
    cell = Cell(max_num_seqs=1)
    for _ in range(50):
        cell.add([5], tenant="own")
    cell.add([5], tenant="other")
    waiting = cell.scheduler.queues.waiting
    urgent = queue_order(cell.now, -1, 60.0, 1000)
    assert waiting.num_ahead("own", 1.0, urgent) == 1  # the other tenant's


def test_nothing_is_preempted_for_a_tenant_that_has_used_more_by_then() -> None:
    cell = Cell(max_num_seqs=2)
    for first in (5, 6):
        cell.add([first], make_params(max_tokens=40), tenant="a")
    for _ in range(9):
        cell.step()
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    # Both have used as much, until the result of the step in flight is charged.
    cell.add([7], make_params(max_tokens=2), tenant="b")
    cell.add([8], make_params(max_tokens=2), tenant="a", priority=-1)
    cell.take(cell.scheduler.update(cell.model.step(outputs)))
    cell.step()
    assert cell.scheduler.counters.preemptions == 0
    cell.run()


def test_those_ahead_are_counted_by_fair_shares() -> None:
    cell = Cell(max_num_seqs=1)
    for _ in range(50):
        cell.add([5], tenant="flood")
    cell.add([5], tenant="light")
    waiting = cell.scheduler.queues.waiting
    assert waiting.num_ahead("flood", 1.0, LAST) == 51
    assert waiting.num_ahead("light", 1.0, LAST) == 1 + 2
    assert waiting.num_ahead("new", 1.0, LAST) == 2
    assert waiting.num_ahead("new", 0.5, LAST) == 2 + 1


@pytest.mark.parametrize("weight", [0.0, -1.0, 5e-324, float("nan"), float("inf")])
def test_a_weight_is_not_trusted(weight: float) -> None:
    with pytest.raises(InvalidRequestError, match="tenant_weight: must be in"):
        Submission([5], SamplingParams(), tenant_weight=weight)


def test_a_group_that_is_preempted_makes_place_for_the_one_that_starts() -> None:
    num_preempted = 0
    for num_steps, num_prompt in product(range(1, 16), (15, 16)):
        cell = Cell(max_num_seqs=2)
        cell.add(make_prompt(num_prompt), make_params(max_tokens=1), tenant="b")
        cell.add(make_prompt(2), make_params(max_tokens=40), tenant="a", priority=-20)
        for tenant in ("a", "a", "b"):
            cell.add(make_prompt(2), make_params(max_tokens=40), tenant=tenant)
        for _ in range(num_steps):
            cell.step()
        urgent = cell.add(make_prompt(2), make_params(max_tokens=2), tenant="a", priority=-9)
        cell.step()
        if cell.scheduler.counters.preemptions:
            num_preempted += 1
            assert urgent in cell.scheduler.queues.running
    assert num_preempted


def test_running_groups_are_charged_to_their_own_tenants_when_another_comes() -> None:
    cell = Cell()
    for name, num_prompt, weight in (("a", 8, 1.0), ("b", 12, 1.0), ("c", 4, 2.0)):
        params = make_params(max_tokens=50)
        cell.add(make_prompt(num_prompt), params, tenant=name, tenant_weight=weight)
    for _ in range(6):
        cell.step()
    cell.add([5], tenant="new")
    tenants = cell.scheduler.queues.waiting._tenants
    # Their prompts, and five of six output tokens.
    assert [tenants[name].counter for name in "abc"] == [8 + 5, 12 + 5, (4 + 5) / 2]


def test_the_least_weight_is_no_infinite_share() -> None:
    cell = Cell(max_num_seqs=1)
    for weight in (MIN_WEIGHT, MAX_WEIGHT):
        for _ in range(3):
            cell.add([5, 6], make_params(max_tokens=3), tenant=f"{weight:g}", tenant_weight=weight)
    cell.step()
    waiting = cell.scheduler.queues.waiting
    assert 0 <= waiting.num_ahead("new", MIN_WEIGHT, LAST) <= len(waiting)
    cell.run()
    assert all(isfinite(tenant.counter) for tenant in waiting._tenants.values())
