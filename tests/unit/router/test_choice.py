"""Where requests go: prefixes, load, bursts, and cells that come and go."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from quire.contract.block_hashes import (
    extend_block_hashes,
    is_reported_depth,
    reported_depths,
    short_hash,
)
from quire.contract.outputs import TOKENS_OF_DECODING
from router.cells.choice import MAX_HOLDERS, CellChoice, ReportedLoad, RoutingPolicy
from router.cells.load import CellLoad

BLOCK_SIZE = 16
FREE = 10_000


def make_placement(
    num_cells: int, policy: RoutingPolicy = RoutingPolicy.PREFIX_AWARE
) -> CellChoice[str]:
    choice: CellChoice[str] = CellChoice(policy, random.Random(1))
    for number in range(num_cells):
        choice.join(f"cell {number}", BLOCK_SIZE)
        choice.report(f"cell {number}", ReportedLoad(0, FREE))
    return choice


def prompt(document: int, num_tokens: int = 400, question: int = 0) -> list[int]:
    return [1000 + document] * num_tokens + [question, 5, 5, 5]


def digest(token_ids: list[int], salt: bytes = b"") -> list[int]:
    """What a cell reports that has computed these tokens."""
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, BLOCK_SIZE, len(token_ids) // BLOCK_SIZE, salt)
    return [short_hash(hashes[depth - 1]) for depth in reported_depths(len(hashes))]


def test_reported_depths_are_those_that_are_reported_and_steps_of_a_half_at_most() -> None:
    depths = list(reported_depths(1000))
    assert depths[:10] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert depths == [depth for depth in range(1, 1001) if is_reported_depth(depth)]
    assert all(later <= 1.5 * earlier for earlier, later in itertools.pairwise(depths[1:]))


def test_a_prompt_goes_where_its_prefix_is() -> None:
    choice = make_placement(50)
    choice.update_digest("cell 17", digest(prompt(1)), [])
    placed = choice.place(prompt(1, question=9), b"")
    assert placed is not None
    assert placed.cell == "cell 17"
    assert placed.num_cached_tokens == 24 * BLOCK_SIZE


def test_of_a_very_long_prompt_the_beginning_counts() -> None:
    choice = make_placement(5)
    token_ids = [7] * 200_000
    choice.update_digest("cell 3", digest(token_ids), [])
    placed = choice.place(token_ids, b"")
    assert placed is not None
    assert (placed.cell, placed.num_cached_tokens) == ("cell 3", 4096 * BLOCK_SIZE)


def test_another_salt_shares_nothing() -> None:
    choice = make_placement(2)
    choice.update_digest("cell 0", digest(prompt(1), b"a"), [])
    placed = choice.place(prompt(1), b"a")
    assert placed is not None and placed.num_cached_tokens > 0
    placed = choice.place(prompt(1), b"b")
    assert placed is not None and placed.num_cached_tokens == 0


def test_of_two_prefixes_the_longer_one_counts() -> None:
    choice = make_placement(10)
    choice.update_digest("cell 3", digest(prompt(1)[:64]), [])
    choice.update_digest("cell 7", digest(prompt(1)), [])
    placed = choice.place(prompt(1, question=2), b"")
    assert placed is not None and placed.cell == "cell 7"


def test_what_was_evicted_does_not_count() -> None:
    choice = make_placement(10)
    keys = digest(prompt(1))
    choice.update_digest("cell 7", keys, [])
    choice.update_digest("cell 7", [], keys)
    placed = choice.place(prompt(1, question=2), b"")
    assert placed is not None and placed.num_cached_tokens == 0


def test_a_burst_with_one_prefix_goes_together_before_any_report_shows_it() -> None:
    choice = make_placement(100)
    cells = Counter()
    for question in range(5):
        placed = choice.place(prompt(1, question=question), b"")
        assert placed is not None
        cells[placed.cell] += 1
    assert len(cells) == 1


def test_a_hot_prefix_overflows_to_other_cells_which_share_it_evenly() -> None:
    choice = make_placement(20)
    cells = Counter()
    for question in range(2000):
        placed = choice.place(prompt(1, question=question), b"")
        assert placed is not None
        cells[placed.cell] += 1
    assert len(cells) == 20
    # Nothing ends here, so that load grows without bound; it stays within a prompt or so.
    assert max(cells.values()) <= 1.2 * min(cells.values())


def test_a_busy_holder_is_passed_over() -> None:
    choice = make_placement(2)
    choice.update_digest("cell 0", digest(prompt(1)), [])
    choice.report("cell 0", ReportedLoad(10_000, FREE))
    placed = choice.place(prompt(1), b"")
    assert placed is not None and placed.cell == "cell 1"


def test_a_cell_without_room_is_passed_over() -> None:
    choice = make_placement(2)
    choice.report("cell 0", ReportedLoad(0, 1))
    cells = set()
    for document in range(2):
        placed = choice.place(prompt(document), b"")
        assert placed is not None
        cells.add(placed.cell)
    assert cells == {"cell 1"}


def test_an_expectation_that_was_not_met_is_dropped_with_the_next_report() -> None:
    choice = make_placement(1)
    placed = choice.place(prompt(1), b"")
    assert placed is not None
    # A report before the first token has no part of it.
    choice.report("cell 0", ReportedLoad(400, FREE))
    again = choice.place(prompt(1), b"")
    assert again is not None and again.num_cached_tokens > 0
    choice.ended(placed)
    choice.ended(again)
    choice.report("cell 0", ReportedLoad(0, FREE))
    third = choice.place(prompt(1), b"")
    assert third is not None and third.num_cached_tokens == 0


def test_an_expectation_that_was_met_outlives_the_request() -> None:
    choice = make_placement(1)
    placed = choice.place(prompt(1), b"")
    assert placed is not None
    choice.queued(placed)
    choice.computed(placed)
    choice.update_digest("cell 0", digest(prompt(1)), [])
    choice.report("cell 0", ReportedLoad(TOKENS_OF_DECODING, FREE))
    choice.ended(placed)
    again = choice.place(prompt(1), b"")
    assert again is not None and again.num_cached_tokens == 24 * BLOCK_SIZE


def outstanding(choice: CellChoice[str], cell: str) -> int:
    return choice.outstanding_tokens(cell)


def test_tokens_of_a_request_are_counted_once() -> None:
    choice = make_placement(1)
    placed = choice.place(prompt(1), b"")
    assert placed is not None
    expected = 404 + TOKENS_OF_DECODING
    assert outstanding(choice, "cell 0") == expected
    # A report that the cell sent before it received the request.
    choice.report("cell 0", ReportedLoad(0, FREE))
    assert outstanding(choice, "cell 0") == expected
    choice.queued(placed)
    choice.report("cell 0", ReportedLoad(expected, FREE))
    assert outstanding(choice, "cell 0") == expected
    choice.computed(placed)
    assert outstanding(choice, "cell 0") == TOKENS_OF_DECODING
    choice.report("cell 0", ReportedLoad(TOKENS_OF_DECODING, FREE))
    assert outstanding(choice, "cell 0") == TOKENS_OF_DECODING
    choice.ended(placed)
    assert outstanding(choice, "cell 0") == 0
    choice.ended(placed)
    choice.report("cell 0", ReportedLoad(0, FREE))
    assert outstanding(choice, "cell 0") == 0


def test_requests_that_end_unreported_leave_nothing_behind() -> None:
    choice = make_placement(1)
    for admitted in (False, True):
        placed = choice.place(prompt(1), b"")
        assert placed is not None
        if admitted:
            choice.queued(placed)
        choice.ended(placed)
        assert outstanding(choice, "cell 0") == 0
        choice.report("cell 0", ReportedLoad(0, FREE))
        assert outstanding(choice, "cell 0") == 0


def test_a_cell_that_left_is_not_chosen_and_may_come_back_empty() -> None:
    choice = make_placement(3)
    choice.update_digest("cell 1", digest(prompt(1)), [])
    placed = choice.place(prompt(1), b"")
    assert placed is not None and placed.cell == "cell 1"
    choice.leave("cell 1")
    choice.leave("cell 1")
    # Late words about a cell that left change nothing.
    choice.report("cell 1", ReportedLoad(0, FREE))
    choice.update_digest("cell 1", digest(prompt(1)), [])
    choice.ended(placed)
    cells = set()
    for document in range(50):
        other = choice.place(prompt(document), b"")
        assert other is not None
        cells.add(other.cell)
    assert cells == {"cell 0", "cell 2"}
    choice.join("cell 1", BLOCK_SIZE)
    choice.report("cell 1", ReportedLoad(0, FREE))
    again = choice.place(prompt(77), b"")
    assert again is not None and again.num_cached_tokens == 0
    choice.check_invariants()


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_without_cells_there_is_no_choice(policy: RoutingPolicy) -> None:
    choice = make_placement(1, policy)
    choice.leave("cell 0")
    assert choice.place(prompt(1), b"") is None


def test_round_robin_takes_one_after_the_other() -> None:
    choice = make_placement(3, RoutingPolicy.ROUND_ROBIN)
    cells = [choice.place(prompt(1), b"").cell for _ in range(6)]  # type: ignore[union-attr]
    assert cells == ["cell 0", "cell 1", "cell 2"] * 2


def test_least_loaded_spreads_evenly() -> None:
    choice = make_placement(20, RoutingPolicy.LEAST_LOADED)
    cells = Counter(
        choice.place(prompt(1), b"").cell  # type: ignore[union-attr]
        for _ in range(2000)
    )
    assert len(cells) == 20
    assert max(cells.values()) <= 1.2 * min(cells.values())


def test_cells_of_different_block_sizes_are_compared_by_tokens() -> None:
    choice: CellChoice[str] = CellChoice(RoutingPolicy.PREFIX_AWARE, random.Random(1))
    choice.join("small", 16)
    choice.join("large", 64)
    hashes: list[bytes] = []
    extend_block_hashes(hashes, prompt(1), 64, 6)
    choice.report("small", ReportedLoad(0, FREE))
    choice.report("large", ReportedLoad(0, FREE))
    choice.update_digest("small", digest(prompt(1)[:100]), [])
    choice.update_digest("large", [short_hash(hashes[depth - 1]) for depth in (1, 2, 3, 4, 6)], [])
    placed = choice.place(prompt(1, question=4), b"")
    assert placed is not None
    assert (placed.cell, placed.num_cached_tokens) == ("large", 384)
    choice.check_invariants()


def test_any_run_of_events_keeps_the_index_right() -> None:
    rng = random.Random(3)
    choice = make_placement(8)
    open_requests = []
    for _ in range(5000):
        cell = f"cell {rng.randrange(8)}"
        match rng.randrange(7):
            case 0 | 1:
                placed = choice.place(prompt(rng.randrange(6), rng.randrange(1, 200)), b"")
                if placed is not None:
                    open_requests.append(placed)
            case 2 if open_requests:
                choice.ended(open_requests.pop(rng.randrange(len(open_requests))))
            case 3 if open_requests:
                choice.queued(rng.choice(open_requests))
            case 4 if open_requests:
                choice.computed(rng.choice(open_requests))
            case 5:
                keys = digest(prompt(rng.randrange(6), rng.randrange(1, 200)))
                added, removed = (keys, []) if rng.random() < 0.5 else ([], keys)
                choice.update_digest(cell, added, removed)
                choice.report(cell, ReportedLoad(rng.randrange(1000), FREE))
            case 6:
                if cell in choice:
                    choice.leave(cell)
                else:
                    choice.join(cell, BLOCK_SIZE)
        choice.check_invariants()


class OnlyByIndex(list[Any]):
    """A list of which single items are read: nothing that costs more the longer it is."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("walks over all cells")


def test_a_choice_among_a_thousand_cells_looks_at_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    num_looked_at = 0
    cost = CellLoad.cost

    def counted(view: CellLoad[str], num_tokens: int, num_cached_tokens: int) -> float:
        nonlocal num_looked_at
        num_looked_at += 1
        return cost(view, num_tokens, num_cached_tokens)

    monkeypatch.setattr(CellLoad, "cost", counted)
    choice = make_placement(1000)
    hot = digest(prompt(0))
    for number in range(1000):
        choice.update_digest(f"cell {number}", hot, [])
        choice.update_digest(f"cell {number}", digest(prompt(number)), [])
    choice._cells = OnlyByIndex(choice._cells)
    for number in range(500):
        num_looked_at = 0
        placed = choice.place(prompt(number % 1000, question=number), b"")
        assert placed is not None
        assert 3 <= num_looked_at <= MAX_HOLDERS + 2
        choice.ended(placed)
