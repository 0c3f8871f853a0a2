"""Which cell a request goes to. Pure: no clock, no I/O, no logging; a simulator drives it too.

A cell that has computed a prompt's prefix has less to do for it, a cell with less to do begins
sooner. Both are counted in tokens and added, so that requests follow their prefix until the cells
that hold it are busier than computing it again elsewhere would make another.
"""

import random
from collections import Counter
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from quire.block_hashes import extend_block_hashes, reported_depths, short_hash
from quire.outputs import TOKENS_OF_DECODING

# What computing a token again counts, beside waiting for one: it takes time, and it keeps all who
# come later waiting too. At 1, two requests of a burst would never share a prefix while any cell is
# idle.
COMPUTE_WEIGHT = 2
# Cells that are looked at for the prefix they hold, those of the longest first.
MAX_HOLDERS = 8
# Blocks of a prompt that are hashed, about 0.6 us each: what differs later does not count.
MAX_PREFIX_BLOCKS = 4096

CellT = TypeVar("CellT", bound=Hashable)
# (tokens, block size, short hash) of the beginning of a prompt.
_Prefix: TypeAlias = tuple[int, int, int]


class RoutingPolicy(StrEnum):
    """How a cell is chosen: by cached prefixes and load, by load alone, or one after the other."""

    PREFIX_AWARE = "prefix-aware"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


@dataclass(frozen=True, slots=True)
class CellLoad:
    """What a cell says about its load.

    Attributes:
        outstanding_tokens: that it has yet to compute, see CellState.
        num_free_blocks: of its cache.
    """

    outstanding_tokens: int = 0
    num_free_blocks: int = 0


@dataclass(slots=True, eq=False)
class Assignment(Generic[CellT]):
    """A request at the cell that was chosen for it. Its owner reports its progress by it.

    Attributes:
        cell: where it goes.
        num_cached_tokens: of its prompt, that the cell is expected to hold.
        view: of the cell. This and what follows is for the Placement only.
        keys: short hashes of the prefixes that the request will leave in the cache.
        prefill_tokens: that the cell has to compute before the first token.
        decode_tokens: that what follows is counted as.
        is_unreported: no report of the cell can have the request yet.
        is_admitted: the next report has it.
        is_computed: it has its first token, or wants none any more.
        is_ended: it is there no more.
    """

    cell: CellT
    num_cached_tokens: int
    view: "_CellView[CellT]"
    keys: list[int]
    prefill_tokens: int
    decode_tokens: int
    is_unreported: bool = True
    is_admitted: bool = False
    is_computed: bool = False
    is_ended: bool = False


@dataclass(slots=True, eq=False)
class _CellView(Generic[CellT]):
    """A cell as this router knows it.

    Attributes:
        cell: its name.
        block_size: of its cache.
        place: its index in the list of cells.
        load: as last reported.
        keys: blocks it has reported.
        expected: blocks that requests placed there will leave in its cache, and how many of these
            requests; a block is here until the report that must have it, if it is still there.
        settling: of requests that have computed or given up their prompt since the last report.
        admitted: requests that the next report has.
        unreported_tokens: of requests that no report has yet.
        done_tokens: that the last report still has, of requests that went on since.
    """

    cell: CellT
    block_size: int
    place: int
    load: CellLoad = field(default_factory=CellLoad)
    keys: set[int] = field(default_factory=set)
    expected: dict[int, int] = field(default_factory=dict)
    settling: list[int] = field(default_factory=list)
    admitted: list[Assignment[CellT]] = field(default_factory=list)
    unreported_tokens: int = 0
    done_tokens: int = 0

    @property
    def outstanding_tokens(self) -> int:
        """As last reported, and what this router knows to have changed since."""
        reported = max(0, self.load.outstanding_tokens - self.done_tokens)
        return reported + self.unreported_tokens

    def num_cached_tokens(self, prefixes: Iterable[_Prefix]) -> int:
        """Return how much of a prompt is, or soon will be, in the cache.

        Args:
            prefixes: of the prompt, longest first.
        """
        keys, expected = self.keys, self.expected
        for num_tokens, _, key in prefixes:
            if key in keys or key in expected:
                return num_tokens
        return 0

    def cost(self, num_prompt_tokens: int, num_cached_tokens: int) -> int:
        """Return what a request costs here, in tokens."""
        num_to_compute = num_prompt_tokens - num_cached_tokens
        # What is on its way there takes blocks too.
        num_free_tokens = self.load.num_free_blocks * self.block_size - self.unreported_tokens
        # Without room for it, as many tokens of others have to come to their end first.
        lacking = max(0, num_to_compute + TOKENS_OF_DECODING - num_free_tokens)
        return self.outstanding_tokens + COMPUTE_WEIGHT * (num_to_compute + lacking)


class Placement(Generic[CellT]):
    """The cells that a router may choose from for one model, and the choice.

    Choosing looks at a bounded number of cells, however many there are: those that hold the longest
    known prefix of the prompt, found by an index from block hashes to cells, and two at random.

    What a cell holds is known from its reports, and expected from requests that this router has
    placed there lately: of a burst of requests with a new prefix, all but the first find it.

    Args:
        policy: how to choose.
        rng: source of chance; a seeded one makes choices repeatable.
    """

    def __init__(self, policy: RoutingPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._random = rng.random
        self._cells: list[_CellView[CellT]] = []
        self._view_of: dict[CellT, _CellView[CellT]] = {}
        self._holders: dict[int, list[_CellView[CellT]]] = {}
        self._num_of_block_size: Counter[int] = Counter()
        self._num_placed = 0

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, cell: CellT) -> bool:
        return cell in self._view_of

    def outstanding_tokens(self, cell: CellT) -> int:
        """Return what a cell, which must be here, has yet to compute."""
        return self._view_of[cell].outstanding_tokens

    def check_invariants(self) -> None:
        """Raise AssertionError unless lists, index and counts agree."""
        assert [view.place for view in self._cells] == list(range(len(self._cells)))
        assert {id(view) for view in self._cells} == {id(view) for view in self._view_of.values()}
        assert self._num_of_block_size == Counter(view.block_size for view in self._cells)
        known = [(key, view) for view in self._cells for key in view.keys | view.expected.keys()]
        indexed = [(key, view) for key, views in self._holders.items() for view in views]
        assert len(indexed) == len(known), "a cell is indexed twice, or for what it does not hold"
        assert set(indexed) == set(known), "the index differs from what is known of the cells"
        for view in self._cells:
            assert view.unreported_tokens >= 0, f"{view.cell} counts less than nothing"
            assert all(count > 0 for count in view.expected.values()), "expected by nobody"

    # ------------------------------------------------------------------ cells

    def join(self, cell: CellT, block_size: int) -> None:
        """Choose among one cell more, with an empty cache until it says otherwise."""
        assert cell not in self._view_of, f"{cell} has joined already"
        view = _CellView(cell, block_size, len(self._cells))
        self._cells.append(view)
        self._view_of[cell] = view
        self._num_of_block_size[block_size] += 1

    def leave(self, cell: CellT) -> None:
        """Do not choose a cell any more; one that is not here may leave too."""
        view = self._view_of.pop(cell, None)
        if view is None:
            return
        last = self._cells.pop()
        if last is not view:
            self._cells[view.place] = last
            last.place = view.place
        self._num_of_block_size[view.block_size] -= 1
        self._num_of_block_size += Counter()  # without those of no cell
        for key in view.keys | view.expected.keys():
            self._drop_holder(key, view)

    def report(self, cell: CellT, load: CellLoad) -> None:
        """Take a cell's word on its load; what its cache holds must have been told before.

        Only cells that are here are listened to.
        """
        view = self._view_of.get(cell)
        if view is None:
            return
        view.load = load
        view.done_tokens = 0
        for assignment in view.admitted:
            self._count_reported(assignment)
        view.admitted.clear()
        # What these have computed is among the reported blocks now, or gone already.
        for key in view.settling:
            view.expected[key] -= 1
            if not view.expected[key]:
                del view.expected[key]
                if key not in view.keys:
                    self._drop_holder(key, view)
        view.settling.clear()

    def update_digest(self, cell: CellT, added: Iterable[int], removed: Iterable[int]) -> None:
        """Take a cell's word on what its cache holds.

        Only cells that are here are listened to.

        Args:
            cell: that says so.
            added: short hashes of blocks that can be found there since the last time.
            removed: of those that cannot any more; none of them is in `added`.
        """
        view = self._view_of.get(cell)
        if view is None:
            return
        for key in removed:
            if key in view.keys:
                view.keys.remove(key)
                if key not in view.expected:
                    self._drop_holder(key, view)
        for key in added:
            if key not in view.keys:
                view.keys.add(key)
                if key not in view.expected:
                    self._holders.setdefault(key, []).append(view)

    def _drop_holder(self, key: int, view: _CellView[CellT]) -> None:
        holders = self._holders[key]
        if len(holders) == 1:
            del self._holders[key]
        else:
            holders.remove(view)

    # ------------------------------------------------------------------ requests

    def place(
        self, prompt_token_ids: AbstractSequence[int], cache_salt: bytes, num_sequences: int = 1
    ) -> Assignment[CellT] | None:
        """Choose a cell for a request and count the request as its own; None if there is no cell.

        Args:
            prompt_token_ids: with the output so far of a request that is moved.
            cache_salt: cached prefixes are shared within a salt only.
            num_sequences: that the request will decode at once.
        """
        if not self._cells:
            return None
        prefixes: list[_Prefix] = []
        match self._policy:
            case RoutingPolicy.ROUND_ROBIN:
                view = self._cells[self._num_placed % len(self._cells)]
            case RoutingPolicy.LEAST_LOADED:
                view = min(self._two_at_random(), key=lambda each: each.outstanding_tokens)
            case RoutingPolicy.PREFIX_AWARE:
                prefixes = self._prefixes(prompt_token_ids, cache_salt)
                view = self._cheapest(prefixes, len(prompt_token_ids))
        self._num_placed += 1
        return self._assign(view, prefixes, len(prompt_token_ids), num_sequences)

    def admitted(self, assignment: Assignment[CellT]) -> None:
        """The cell has queued a request: its next report counts it."""
        if assignment.is_unreported and not assignment.is_admitted:
            assignment.is_admitted = True
            assignment.view.admitted.append(assignment)

    def computed(self, assignment: Assignment[CellT]) -> None:
        """A request has its first token: its prompt is computed."""
        if assignment.is_computed:
            return
        assignment.is_computed = True
        self._count_done(assignment, assignment.prefill_tokens)
        assignment.view.settling.extend(assignment.keys)

    def ended(self, assignment: Assignment[CellT]) -> None:
        """A request has ended, was refused, or was taken from its cell."""
        if assignment.is_ended:
            return
        self.computed(assignment)
        assignment.is_ended = True
        self._count_done(assignment, assignment.decode_tokens)

    # ------------------------------------------------------------------ choice

    def _prefixes(self, token_ids: AbstractSequence[int], cache_salt: bytes) -> list[_Prefix]:
        """Return the prefixes of a prompt that cells may report, longest first.

        A cell computes at least the last token of a prompt, whatever it holds.
        """
        prefixes = []
        for block_size in self._num_of_block_size:
            num_blocks = min((len(token_ids) - 1) // block_size, MAX_PREFIX_BLOCKS)
            depths = list(reported_depths(num_blocks))
            if not depths:
                continue
            hashes: list[bytes] = []
            extend_block_hashes(hashes, token_ids, block_size, depths[-1], cache_salt)
            prefixes += [
                (depth * block_size, block_size, short_hash(hashes[depth - 1])) for depth in depths
            ]
        prefixes.sort(reverse=True)
        return prefixes

    def _cheapest(self, prefixes: list[_Prefix], num_tokens: int) -> _CellView[CellT]:
        # Of equals, `min` takes the first: one that holds something, or one by chance.
        candidates = [*self._holders_of(prefixes), *self._two_at_random()]
        return min(
            candidates, key=lambda view: view.cost(num_tokens, view.num_cached_tokens(prefixes))
        )

    def _holders_of(self, prefixes: list[_Prefix]) -> list[_CellView[CellT]]:
        """Return at most MAX_HOLDERS cells that hold a prefix, those of the longest first."""
        found: list[_CellView[CellT]] = []
        for _, _, key in prefixes:
            holders = self._holders.get(key)
            if holders is None:
                continue
            num_wanted = MAX_HOLDERS - len(found)
            if len(holders) > num_wanted:
                # Neighbours in the list are as good as any, if the first is chosen by chance.
                start = int(self._random() * len(holders))
                chosen = holders[start : start + num_wanted]
                holders = chosen + holders[: num_wanted - len(chosen)]
            found += [view for view in holders if view not in found]
            if len(found) >= MAX_HOLDERS:
                break
        return found

    def _two_at_random(self) -> tuple[_CellView[CellT], _CellView[CellT]]:
        """Return two different cells, or the only one twice."""
        cells = self._cells
        first = int(self._random() * len(cells))
        if len(cells) == 1:
            return cells[0], cells[0]
        second = int(self._random() * (len(cells) - 1))
        return cells[first], cells[second + (second >= first)]

    # ------------------------------------------------------------------ accounts

    def _assign(
        self,
        view: _CellView[CellT],
        prefixes: list[_Prefix],
        num_tokens: int,
        num_sequences: int,
    ) -> Assignment[CellT]:
        num_cached_tokens = view.num_cached_tokens(prefixes)
        keys = [key for _, block_size, key in prefixes if block_size == view.block_size]
        for key in keys:
            count = view.expected.get(key, 0)
            if not count and key not in view.keys:
                self._holders.setdefault(key, []).append(view)
            view.expected[key] = count + 1
        assignment = Assignment(
            view.cell,
            num_cached_tokens,
            view,
            keys,
            prefill_tokens=num_tokens - num_cached_tokens,
            decode_tokens=num_sequences * TOKENS_OF_DECODING,
        )
        view.unreported_tokens += assignment.prefill_tokens + assignment.decode_tokens
        return assignment

    def _count_reported(self, assignment: Assignment[CellT]) -> None:
        """A report has the request, as far as it has not gone on before."""
        assignment.is_unreported = False
        view = assignment.view
        if not assignment.is_computed:
            view.unreported_tokens -= assignment.prefill_tokens
        if not assignment.is_ended:
            view.unreported_tokens -= assignment.decode_tokens

    def _count_done(self, assignment: Assignment[CellT], num_tokens: int) -> None:
        """A part of a request is done that the last report has not seen done."""
        if assignment.is_unreported:
            assignment.view.unreported_tokens -= num_tokens
        else:
            assignment.view.done_tokens += num_tokens
