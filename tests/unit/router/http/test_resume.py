"""Ids of events: whichever order choices come in, and however often a stream breaks."""

import random

import pytest

from router.http.resume import EventIds


def received_of(event_id: str) -> tuple[int, ...]:
    return tuple(map(int, event_id.split(".")))


def test_an_id_counts_what_came_before_the_stream_broke() -> None:
    """Of a choice whose events come again later, too: it may break once more before they do."""
    ids = EventIds(2, (2, 9))
    assert [ids.next(0) for _ in range(4)] == [None, None, "3.9", "4.9"]
    assert [ids.next(1) for _ in range(10)] == [None] * 9 + ["4.10"]


@pytest.mark.parametrize("seed", range(20))
def test_each_event_comes_once_however_often_a_stream_breaks(seed: int) -> None:
    chance = random.Random(seed)
    num_events = [chance.randrange(1, 30) for _ in range(3)]
    came: list[list[int]] = [[] for _ in num_events]
    last_id = "0.0.0"
    while any(len(each) < number for each, number in zip(came, num_events, strict=True)):
        ids = EventIds(3, received_of(last_id))
        sent = [0, 0, 0]
        # What comes again does so in an order of its own: choices are read as they stand.
        order = [index for index, number in enumerate(num_events) for _ in range(number)]
        chance.shuffle(order)
        for index in order[: chance.randrange(1, len(order) + 1)]:
            sent[index] += 1
            if (event_id := ids.next(index)) is not None:
                came[index].append(sent[index])
                last_id = event_id
    assert came == [list(range(1, number + 1)) for number in num_events]
