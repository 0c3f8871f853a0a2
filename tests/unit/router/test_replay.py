"""What a client may have to read again."""

import pytest

from router.requests.replay import Replay, TextReplay


def test_each_item_is_read_once_and_again_after_going_back() -> None:
    replay: Replay[int] = Replay(max_kept=10)
    replay.extend((0, 1, 2))
    assert replay.read() == (0, 1, 2)
    replay.append(3)
    assert replay.read() == (3,)
    assert replay.read() == ()
    replay.go_to(1)
    assert replay.read() == (1, 2, 3)
    assert not replay.covers(0), "a client that had an item needs it no more"


def test_what_is_kept_of_read_items_is_bounded() -> None:
    replay: Replay[int] = Replay(max_kept=10)
    for number in range(1000):
        replay.append(number)
        replay.read()
    assert len(replay) == 1000
    covered = [number for number in range(1002) if replay.covers(number)]
    assert covered[-1] == 1000
    assert 11 <= len(covered) <= 21
    replay.go_to(990)
    assert replay.read() == tuple(range(990, 1000))


def test_unread_items_are_all_kept() -> None:
    replay: Replay[int] = Replay()
    replay.extend(range(100))
    assert replay.read() == tuple(range(100))
    assert not replay.covers(99)
    assert replay.covers(100)


def test_items_may_begin_behind_what_was_received_elsewhere() -> None:
    replay: Replay[int] = Replay(max_kept=10)
    replay.go_to(5)
    replay.append(5)
    assert (len(replay), replay.read()) == (6, (5,))
    assert not replay.covers(4)


def test_text_goes_on_behind_any_character() -> None:
    text = TextReplay(keeps=True)
    for part in ("a中", "", "😀b"):
        text.append(part)
        assert text.read() == part
    assert text.num_bytes == 9
    ends = {0: "a中😀b", 1: "中😀b", 4: "😀b", 8: "b", 9: ""}
    assert {place: text.after(place) for place in ends} == ends
    for place in (-1, 2, 3, 5, 6, 7, 10):
        assert text.after(place) is None


@pytest.mark.parametrize("keeps", [False, True])
def test_text_after_going_back_is_counted_from_its_beginning(keeps: bool) -> None:
    text = TextReplay(keeps)
    text.append("abcdef")
    text.go_to(4, "ef")
    assert (text.num_bytes, text.after(5), text.after(3)) == (6, "f", None)
    text.append("g")
    assert text.read() == "efg"
    if keeps:
        assert text.after(4) == "efg"
