"""The metrics of hand-made timelines."""

import numpy as np
import pytest

from launch.bench.metrics import measure
from tests.unit.launch.bench.outcomes import outcome


def test_latencies_of_a_timeline_are_what_they_are_called() -> None:
    outcomes = [
        # From 0 s to 3.5 s: the first token after 1 s, then three in 2 s, then 0.5 s to the end.
        outcome(0.0, [1.0, 2.0, 2.5, 3.0], num_tokens=4, ended=3.5),
        # A token alone has a time to it and no time after it.
        outcome(0.5, [2.5], num_tokens=1),
    ]
    found = measure(outcomes, 4.0, None, {})
    assert found.latencies["ttft"].tolist() == [1.0, 2.0]
    assert found.latencies["tpot"].tolist() == pytest.approx([2.5 / 3])
    assert found.latencies["itl"].tolist() == [1.0, 0.5, 0.5]
    assert found.latencies["e2el"].tolist() == [3.5, 2.0]
    assert [each.tolist() for each in found.itls] == [[1.0, 0.5, 0.5], []]
    assert (found.completed, found.failed) == (2, 0)
    assert (found.total_input_tokens, found.total_output_tokens) == (20, 5)


def test_a_second_has_the_tokens_and_requests_of_it() -> None:
    outcomes = [
        outcome(10.2, [10.7, 11.3, 12.1], num_tokens=3),
        outcome(11.5, [11.9, 12.0], num_tokens=2),
    ]
    found = measure(outcomes, 2.0, None, {})
    # From 10.2 s: 10.7, then 11.3 and 11.9 and 12.0 and 12.1.
    assert found.timeline.tokens.tolist() == [1, 4]
    assert found.timeline.requests.tolist() == [1, 2]
    assert found.max_output_tokens_per_s == 4


def test_one_that_ends_as_another_starts_is_not_beside_it() -> None:
    one_after_another = [outcome(float(at), [at + 1.0], num_tokens=1) for at in range(5)]
    assert measure(one_after_another, 5.0, None, {}).max_concurrent_requests == 1
    together = [*one_after_another, outcome(1.5, [2.5], num_tokens=1)]
    assert measure(together, 5.0, None, {}).max_concurrent_requests == 2


def test_what_failed_counts_as_failed_and_as_nothing_else() -> None:
    outcomes = [
        outcome(0.0, [1.0, 2.0], num_tokens=2),
        outcome(0.0, [9.0, 99.0], num_tokens=2, error="HTTP 500"),
    ]
    found = measure(outcomes, 2.0, None, {"ttft": 2000.0})
    assert (found.completed, found.failed, found.good) == (1, 1, 1)
    assert (found.total_input_tokens, found.total_output_tokens) == (10, 2)
    assert found.output_lens == [2, 0]
    assert found.latencies["e2el"].tolist() == [2.0]
    assert found.max_concurrent_requests == 1
    assert len(found.timeline.tokens) == 3


def test_where_all_failed_nothing_is_measured() -> None:
    found = measure([outcome(0.0, [], error="refused")], 1.0, None, {"tpot": 1.0})
    assert (found.completed, found.failed, found.good) == (0, 1, 0)
    assert all(len(each) == 0 for each in found.latencies.values())
    assert (found.max_output_tokens_per_s, found.max_concurrent_requests) == (0, 0)


def test_a_good_answer_keeps_every_limit() -> None:
    outcomes = [
        outcome(0.0, [0.1, 0.2], num_tokens=2),  # TTFT 100 ms, TPOT 100 ms
        outcome(0.0, [0.3, 0.4], num_tokens=2),  # TTFT 300 ms
        outcome(0.0, [0.1, 0.9], num_tokens=2),  # TPOT 800 ms
        outcome(0.0, [0.1], num_tokens=1),  # no second token that could be late
    ]
    assert measure(outcomes, 1.0, None, {"ttft": 200.0}).good == 3
    assert measure(outcomes, 1.0, None, {"ttft": 200.0, "tpot": 150.0}).good == 2
    assert measure(outcomes, 1.0, None, {"e2el": 400.0}).good == 3
    assert measure(outcomes, 1.0, None, {}).good == 0


def test_tokens_are_counted_by_the_server_else_by_the_text_else_by_events() -> None:
    counted = outcome(0.0, [1.0, 2.0], num_tokens=5, weights=[4, 3])
    uncounted = outcome(0.0, [1.0, 2.0], weights=[4, 3])
    assert measure([counted], 2.0, len, {}).output_lens == [5]
    assert measure([uncounted], 2.0, len, {}).output_lens == [7]
    assert measure([uncounted], 2.0, None, {}).output_lens == [2]
    assert np.allclose(measure([uncounted], 2.0, len, {}).itls[0].sum(), 1.0)
