"""Histograms and families: what is observed is what is exported."""

import asyncio
import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric

from quire.observe.metrics.families import counter, gauge, histogram
from quire.observe.metrics.histogram import Histogram
from quire.observe.metrics.runtime import RuntimeCollector


def values(family: Metric) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(each.name, frozenset(each.labels.items())): each.value for each in family.samples}


@given(st.lists(st.floats(0, 1000)))
def test_a_histogram_counts_how_many_were_at_most_each_bound(observed: list[float]) -> None:
    bounds = (0.5, 1.0, 10.0, 100.0)
    counted = Histogram(bounds)
    for value in observed:
        counted.observe(value)

    exported = values(histogram("quire_x_seconds", "X.", counted))

    for bound in bounds:
        at_most = sum(value <= bound for value in observed)
        assert exported["quire_x_seconds_bucket", frozenset({("le", repr(bound))})] == at_most
    assert exported["quire_x_seconds_bucket", frozenset({("le", "+Inf")})] == len(observed)
    assert exported["quire_x_seconds_count", frozenset()] == len(observed) == counted.count
    assert exported["quire_x_seconds_sum", frozenset()] == pytest.approx(sum(observed))


def test_series_have_their_labels_in_order() -> None:
    exported = values(
        counter("quire_x_total", "X.", {("a", "b"): 2, ("c", "d"): 3}, ("one", "two"))
    )
    assert exported == {
        ("quire_x_total", frozenset({("one", "a"), ("two", "b")})): 2,
        ("quire_x_total", frozenset({("one", "c"), ("two", "d")})): 3,
    }
    assert values(gauge("quire_y", "Y.", 4)) == {("quire_y", frozenset()): 4}


async def test_pauses_of_the_collector_and_lateness_of_the_loop_are_seen() -> None:
    watched = RuntimeCollector("router", lambda: True)

    def exported() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {key: value for family in watched.collect() for key, value in values(family).items()}

    watched.start()
    try:
        gc.collect()
        # Lets the watch begin to wait, then keeps it waiting for longer than it asked for.
        await asyncio.sleep(0)
        time.sleep(0.6)
        while not exported()["quire_event_loop_lag_seconds_count", frozenset()]:
            await asyncio.sleep(0.01)
    finally:
        await watched.stop()
    seen = exported()
    assert seen["quire_event_loop_lag_seconds_sum", frozenset()] >= 0.3
    assert seen["quire_gc_pause_seconds_count", frozenset({("generation", "2")})] >= 1
    assert seen["quire_gc_pause_seconds_sum", frozenset({("generation", "2")})] > 0
    before = len(gc.callbacks)
    await watched.stop()
    assert len(gc.callbacks) == before


async def test_a_certificate_is_reported_only_where_there_is_one() -> None:
    for expiry in (None, 2e9):
        watched = RuntimeCollector("router", lambda: True, lambda expiry=expiry: expiry)
        names = {family.name for family in watched.collect()}
        assert ("quire_certificate_expiry_timestamp_seconds" in names) == (expiry is not None)
