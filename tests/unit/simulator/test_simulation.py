"""Whole clusters: nothing is lost, the same seed gives the same figures, policies differ."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from router.cells.choice import RoutingPolicy
from simulator.config import Outage, OutageKind, SimulationConfig
from simulator.metrics import Metrics, Summary
from simulator.simulation import simulate
from tests.unit.simulator.setups import CELL, make_config

KILL_AND_DRAIN = (Outage(OutageKind.KILL, 2, 2.0), Outage(OutageKind.DRAIN, 1, 3.0))


def run(
    config: SimulationConfig,
    policy: RoutingPolicy = RoutingPolicy.PREFIX_AWARE,
    num_processes: int = 1,
) -> Metrics:
    return simulate(config, policy, num_processes)


def figures(metrics: Metrics) -> dict[str, Any]:
    """All that a run shows, but for how quickly it was computed."""
    clock: dict[str, Any] = {"wall_s": 1.0, "cpu_s": 1.0}
    summary: Summary = replace(metrics.summary(), **clock)
    return {"summary": summary.as_dict(), "series": metrics.series().as_dict()}


def answers(metrics: Metrics) -> list[tuple[float, ...]]:
    return sorted(metrics.answers)


@pytest.mark.parametrize("policy", RoutingPolicy)
@pytest.mark.parametrize("outages", [(), KILL_AND_DRAIN], ids=["quiet", "outages"])
def test_every_arrival_is_answered_once(policy: RoutingPolicy, outages: tuple[Outage, ...]) -> None:
    # `simulate` itself checks that no cell has a request or a block in use in the end.
    metrics = run(make_config(outages=outages), policy)
    assert metrics.num_answered == metrics.num_arrived > 100
    assert [request_id for request_id, *_ in answers(metrics)] == list(range(metrics.num_arrived))
    for _, arrival_s, first_token_s, end_s, *_ in answers(metrics):
        assert arrival_s < first_token_s <= end_s


def test_the_same_seed_gives_the_same_figures() -> None:
    config = make_config(outages=KILL_AND_DRAIN)
    first, second = run(config), run(config)
    assert answers(first) == answers(second)
    assert figures(first) == figures(second)
    assert answers(run(replace(config, seed=6))) != answers(first)


def test_two_processes_give_the_figures_of_one() -> None:
    config = make_config(outages=KILL_AND_DRAIN, num_cells=5)
    alone, shared = run(config), run(config, num_processes=2)
    assert answers(alone) == answers(shared)
    assert figures(alone) == figures(shared)


def test_prefix_aware_finds_more_than_others_where_prefixes_are_shared() -> None:
    # More documents than one cell's cache holds, and about what all of them hold.
    config = make_config(streams=80, num_cells=6)
    rates = {policy: run(config, policy).summary().prefix_hit_rate for policy in RoutingPolicy}
    assert rates[RoutingPolicy.PREFIX_AWARE] > rates[RoutingPolicy.ROUND_ROBIN] + 0.1
    assert rates[RoutingPolicy.PREFIX_AWARE] > rates[RoutingPolicy.LEAST_LOADED] + 0.1


def test_without_a_prefix_cache_nothing_is_found() -> None:
    config = make_config(cell=replace(CELL, enable_prefix_caching=False))
    assert run(config).summary().prefix_hit_rate == 0


def test_killed_cells_cost_time_and_no_request() -> None:
    quiet = run(make_config(streams=80))
    killed = run(make_config(streams=80, outages=(Outage(OutageKind.KILL, 2, 4.0),)))
    assert killed.num_answered == killed.num_arrived
    moved = killed.summary().moved_requests
    assert moved > 10
    assert quiet.summary().moved_requests == 0
    # Those that were under way wait for other cells to compute them again.
    times: dict[bool, list[float]] = {False: [], True: []}
    for _, _, first_s, end_s, num_tokens, num_moves in answers(killed):
        times[num_moves > 0].append((end_s - first_s) / num_tokens)
    assert np.mean(times[True]) > np.mean(times[False])


def test_all_cells_may_be_killed_and_come_back() -> None:
    config = make_config(outages=(Outage(OutageKind.KILL, 4, 3.0),), restart_s=1.0)
    metrics = run(config)
    assert metrics.num_answered == metrics.num_arrived
    late = [
        first_s - arrival_s
        for _, arrival_s, first_s, *_ in answers(metrics)
        if 3.2 < arrival_s < 3.8 and first_s > arrival_s
    ]
    assert late and min(late) > 0.15, "answered while no cell was there"


def test_a_drained_cell_finishes_what_it_runs() -> None:
    outages = (Outage(OutageKind.DRAIN, 2, 4.0),)
    patient = run(make_config(outages=outages, drain_timeout_s=30.0))
    hasty = run(make_config(outages=outages, drain_timeout_s=0.2))
    assert patient.num_answered == patient.num_arrived
    assert hasty.num_answered == hasty.num_arrived
    assert patient.summary().moved_requests == 0
    assert hasty.summary().moved_requests > 0


def test_goodput_counts_answers_that_met_both_targets() -> None:
    strict = run(make_config(ttft_slo_s=1e-6)).summary()
    assert strict.goodput_per_s == 0 and strict.good_share == 0
    lenient = run(make_config(ttft_slo_s=1e6, tpot_slo_s=1e6)).summary()
    assert lenient.goodput_per_s == lenient.answered_per_s > 0
    assert lenient.good_share == 1
