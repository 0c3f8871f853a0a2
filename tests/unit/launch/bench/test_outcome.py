"""Which token of an answer counts as having come when."""

import numpy as np
import pytest

from launch.bench.outcome import Arrivals


def token_times(reads: list[tuple[float, int]], num_tokens: int) -> list[float]:
    arrivals = Arrivals()
    for at, weight in reads:
        arrivals.add(at, weight)
    found: list[float] = arrivals.token_times(num_tokens).tolist()
    return found


def test_a_token_of_each_event_came_when_it_was_read() -> None:
    # Texts of any length: there are as many events as tokens.
    assert token_times([(1.0, 1), (2.0, 7), (4.0, 3)], 3) == [1.0, 2.0, 4.0]


def test_tokens_of_one_event_came_evenly_since_the_one_before() -> None:
    found = token_times([(1.0, 1), (2.0, 4), (2.5, 1)], 6)
    assert found == pytest.approx([1.0, 1.25, 1.5, 1.75, 2.0, 2.5])


def test_tokens_of_the_first_event_came_with_it() -> None:
    assert token_times([(1.0, 3), (2.0, 1)], 4) == [1.0, 1.0, 1.0, 2.0]


def test_events_that_were_read_together_are_one() -> None:
    assert token_times([(1.0, 1), (3.0, 1), (3.0, 1)], 3) == [1.0, 2.0, 3.0]


def test_text_is_divided_by_its_length_where_tokens_are_not_counted_one_by_one() -> None:
    # 10 characters and 2, of which one each is of the event's first token.
    found = token_times([(0.0, 1), (1.0, 10), (2.0, 2)], 13)
    assert len(found) == 13
    assert found[:11] == pytest.approx(np.linspace(0, 1, 11).tolist())
    assert found[-1] == 2.0


def test_a_token_without_an_event_of_its_own_came_with_the_last() -> None:
    # Such as an end-of-text token, which has no text.
    assert token_times([(0.0, 1), (1.0, 1), (2.0, 1)], 4) == [0.0, 1.0, 1.5, 2.0]
    assert token_times([(0.0, 5), (1.0, 9), (2.0, 5)], 4) == [0.0, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("num_tokens", [0, 2])
def test_there_is_a_token_to_each_event(num_tokens: int) -> None:
    assert token_times([(1.0, 2), (2.0, 1), (4.0, 2)], num_tokens) == [1.0, 2.0, 4.0]


def test_an_answer_without_tokens_has_no_times() -> None:
    assert token_times([], 0) == []


def test_every_number_of_tokens_is_handed_out_whole() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 30))
        reads = list(zip(np.cumsum(rng.random(count)), rng.integers(1, 20, count), strict=True))
        num_tokens = int(rng.integers(0, 400))
        found = token_times([(float(at), int(weight)) for at, weight in reads], num_tokens)
        assert len(found) == max(num_tokens, count)
        assert found == sorted(found)
        assert {at for at, _ in reads} <= set(found)
