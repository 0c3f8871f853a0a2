"""Which cell a request goes to. Pure: no clock, no I/O, no logging; a simulator drives it too.

A cell that has computed a prompt's prefix has less to do for it, a cell with less to do begins
sooner. Both are counted in tokens and added, so that requests follow their prefix until the cells
that hold it are busier than computing it again elsewhere would make another.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as AbstractSequence
from enum import StrEnum
from typing import Generic

from quire.contract.block_hashes import extend_block_hashes, reported_depths, short_hash
from router.cells.load import Assignment, CellLoad, CellT, Prefix, ReportedLoad

__all__ = ["Assignment", "CellChoice", "ReportedLoad", "RoutingPolicy"]


# Cells that are looked at for the prefix they hold, those of the longest first.
MAX_HOLDERS = 8
# Blocks of a prompt that are hashed, about 0.6 us each: what differs later does not count.
MAX_PREFIX_BLOCKS = 4096


class RoutingPolicy(StrEnum):
    """How a cell is chosen.

    Attributes:
        help: by what; completes "a cell is chosen".
        reads_digests: whether it needs to know which prefixes the cells hold.
    """

    help: str
    reads_digests: bool

    def __new__(cls, name: str, help: str = "", reads_digests: bool = False) -> "RoutingPolicy":  # noqa: A002
        """Return a policy of a name."""
        policy = str.__new__(cls, name)
        policy._value_ = name
        policy.help, policy.reads_digests = help, reads_digests
        return policy

    PREFIX_AWARE = "prefix-aware", "by the prefixes in its cache and its load", True
    LEAST_LOADED = "least-loaded", "by load alone"
    ROUND_ROBIN = "round-robin", "one after the other"


class CellChoice(Generic[CellT]):
    """The cells that a router may choose from for one model, and the choice.

    Choosing looks at a bounded number of cells, however many there are: those that hold the longest
    known prefix of the prompt, found by an index from block hashes to cells, and two at random.

    What a cell holds is known from its reports, and expected from requests that this router has
    placed there lately: of a burst of requests with a new prefix, all but the first find it.

    Args:
        policy: how to choose.
        rng: source of chance; a seeded one makes choices repeatable.

    Attributes:
        num_placed_by_prefix: requests placed where part of their prompt is cached.
        num_placed_by_load: requests placed without.
    """

    def __init__(self, policy: RoutingPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._random = rng.random
        self._cells: list[CellLoad[CellT]] = []
        self._view_of: dict[CellT, CellLoad[CellT]] = {}
        self._holders: dict[int, list[CellLoad[CellT]]] = {}
        self._num_of_block_size: Counter[int] = Counter()
        self.num_placed_by_prefix = 0
        self.num_placed_by_load = 0

    @property
    def _num_placed(self) -> int:
        return self.num_placed_by_prefix + self.num_placed_by_load

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
        known = [(key, view) for view in self._cells for key in view.known_keys]
        indexed = [(key, view) for key, views in self._holders.items() for view in views]
        assert len(indexed) == len(known), "a cell is indexed twice, or for what it does not hold"
        assert set(indexed) == set(known), "the index differs from what is known of the cells"
        for view in self._cells:
            assert view.unreported_tokens >= 0, f"{view.cell} counts less than nothing"
            assert all(count > 0 for count in view.expected.values()), "expected by no request"

    # ------------------------------------------------------------------ cells

    def join(self, cell: CellT, block_size: int) -> None:
        """Add a cell to choose from; its cache counts as empty until it reports."""
        assert cell not in self._view_of, f"{cell} has joined already"
        view = CellLoad(cell, block_size, len(self._cells))
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
        for key in view.known_keys:
            self._drop_holder(key, view)

    def report(self, cell: CellT, load: ReportedLoad) -> None:
        """Record a cell's load; what its cache holds must have been recorded before.

        A report of a cell that is not here has no effect.
        """
        view = self._view_of.get(cell)
        if view is None:
            return
        for key in view.report(load):
            if key not in view.keys:
                self._drop_holder(key, view)

    def update_digest(self, cell: CellT, added: Iterable[int], removed: Iterable[int]) -> None:
        """Record what a cell's cache holds.

        A report of a cell that is not here has no effect.

        Args:
            cell: that reports.
            added: short hashes of blocks that can be found there since the last time.
            removed: of those that cannot any more; none of them is in `added`.
        """
        view = self._view_of.get(cell)
        if view is None:
            return
        for key in removed:
            if key in view.keys:
                view.keys.remove(key)
                if not view.has(key):
                    self._drop_holder(key, view)
        for key in added:
            if not view.has(key):
                self._holders.setdefault(key, []).append(view)
            view.keys.add(key)

    def _drop_holder(self, key: int, view: CellLoad[CellT]) -> None:
        holders = self._holders[key]
        if len(holders) == 1:
            del self._holders[key]
        else:
            holders.remove(view)

    # ------------------------------------------------------------------ requests

    def place(
        self,
        prompt_token_ids: AbstractSequence[int],
        cache_salt: bytes,
        num_sequences: int = 1,
        excluded: Collection[CellT] = (),
    ) -> Assignment[CellT] | None:
        """Choose a cell for a request and count the request as its own; None if there is no cell.

        Args:
            prompt_token_ids: with the output so far of a request that is moved.
            cache_salt: cached prefixes are shared within a salt only.
            num_sequences: that the request will decode at once.
            excluded: cells that it must not go to.
        """
        if not self._cells:
            return None
        prefixes: list[Prefix] = []
        match self._policy:
            case RoutingPolicy.ROUND_ROBIN:
                view = self._cells[self._num_placed % len(self._cells)]
            case RoutingPolicy.LEAST_LOADED:
                view = min(self._two_at_random(), key=lambda each: each.outstanding_tokens)
            case RoutingPolicy.PREFIX_AWARE:
                prefixes = self._prefixes(prompt_token_ids, cache_salt)
                view = self._cheapest(prefixes, len(prompt_token_ids))
        if view.cell in excluded:
            # Rare enough to look at all the others.
            others = [each for each in self._cells if each.cell not in excluded]
            if not others:
                return None
            view = min(others, key=lambda each: each.outstanding_tokens)
        for _, block_size, key in prefixes:
            if block_size == view.block_size and not view.has(key):
                self._holders.setdefault(key, []).append(view)
        assignment = view.assign(prefixes, len(prompt_token_ids), num_sequences)
        if assignment.num_cached_tokens:
            self.num_placed_by_prefix += 1
        else:
            self.num_placed_by_load += 1
        return assignment

    def queued(self, assignment: Assignment[CellT]) -> None:
        """The cell has queued a request: its next report counts it."""
        assignment.view.queued(assignment)

    def computed(self, assignment: Assignment[CellT]) -> None:
        """A request has its first token: its prompt is computed."""
        assignment.view.computed(assignment)

    def ended(self, assignment: Assignment[CellT]) -> None:
        """A request has ended, was refused, or was taken from its cell."""
        assignment.view.ended(assignment)

    # ------------------------------------------------------------------ choice

    def _prefixes(self, token_ids: AbstractSequence[int], cache_salt: bytes) -> list[Prefix]:
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

    def _cheapest(self, prefixes: list[Prefix], num_tokens: int) -> CellLoad[CellT]:
        # Of equals, `min` takes the first: one that holds something, or one by chance.
        candidates = [*self._holders_of(prefixes), *self._two_at_random()]
        return min(
            candidates, key=lambda view: view.cost(num_tokens, view.num_cached_tokens(prefixes))
        )

    def _holders_of(self, prefixes: list[Prefix]) -> list[CellLoad[CellT]]:
        """Return at most MAX_HOLDERS cells that hold a prefix, those of the longest first."""
        found: list[CellLoad[CellT]] = []
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

    def _two_at_random(self) -> tuple[CellLoad[CellT], CellLoad[CellT]]:
        """Return two different cells, or the only one twice."""
        cells = self._cells
        first = int(self._random() * len(cells))
        if len(cells) == 1:
            return cells[0], cells[0]
        second = int(self._random() * (len(cells) - 1))
        return cells[first], cells[second + (second >= first)]
