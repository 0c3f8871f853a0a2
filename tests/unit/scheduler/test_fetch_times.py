"""What blocks of another cell cost: the connection and each block, as last measured."""

import pytest

from scheduler_svc.sequences.fetch_times import LASTS_S, FetchTimes


def test_a_connection_is_no_block_s_price() -> None:
    times = FetchTimes()
    for num_blocks in (4, 40, 12, 100):
        times.observe(num_blocks, 5_000.0 + 20.0 * num_blocks, now=1.0)
    assert times.expected_us(1, now=2.0) == pytest.approx(5_020.0)
    assert times.expected_us(1000, now=2.0) == pytest.approx(25_000.0)


def test_what_was_measured_long_ago_is_not_known() -> None:
    times = FetchTimes()
    assert times.expected_us(8, now=0.0) is None
    times.observe(8, 800.0, now=10.0)
    assert times.expected_us(8, now=10.0 + LASTS_S) == pytest.approx(800.0)
    assert times.expected_us(8, now=10.1 + LASTS_S) is None


def test_no_fetch_takes_less_than_the_shortest() -> None:
    times = FetchTimes()
    for num_blocks, fetch_us in ((10, 100.0), (20, 300.0)):
        times.observe(num_blocks, fetch_us, now=0.0)
    assert times.expected_us(1, now=0.0) == 100.0
    times.observe(15, 200.0, now=0.1 + LASTS_S)
    assert times.expected_us(1, now=0.1 + LASTS_S) == 200.0, "the others were long ago"
