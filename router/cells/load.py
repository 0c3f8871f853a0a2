"""A cell as a router knows it: what it has reported, and what the router has placed there since.

A request goes through these calls; `report` comes now and then, whatever requests are at:

    assign --> queued --> computed --> ended
                 |
                 +--> the next report has it

Its tokens stand in `unreported_tokens` up to the report that has it, then in the cell's own load.
`computed` ends its prefill, `ended` the rest: what ends is taken off `unreported_tokens` before
that report, and counts as `done_tokens` after it, until the report that follows. The blocks of its
prompt are `expected` from `assign` to the first report after `computed`; between these they are
`settling`.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from quire.contract.outputs import TOKENS_OF_DECODING

# What computing a token again counts, relative to waiting for one: it takes time, and delays all
# later requests too. At 1, two requests of a burst would never share a prefix while a cell is idle.
COMPUTE_WEIGHT = 2

CellT = TypeVar("CellT", bound=Hashable)
# (tokens, block size, short hash) of the beginning of a prompt.
Prefix: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """What a cell reports about its load.

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
        view: of the cell. This and what follows is for it and the CellChoice only.
        keys: short hashes of the prefixes that the request will leave in the cache.
        prefill_tokens: that the cell has to compute before the first token.
        decode_tokens: that what follows is counted as.
        is_unreported: no report of the cell can have the request yet.
        is_queued: the next report has it.
        is_computed: it has its first token, or wants none any more.
        is_ended: it is there no more.
    """

    cell: CellT
    num_cached_tokens: int
    view: "CellLoad[CellT]"
    keys: list[int]
    prefill_tokens: int
    decode_tokens: int
    is_unreported: bool = True
    is_queued: bool = False
    is_computed: bool = False
    is_ended: bool = False


@dataclass(slots=True, eq=False)
class CellLoad(Generic[CellT]):
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
        being_reported: requests that the next report has.
        unreported_tokens: of requests that no report has yet.
        done_tokens: that the last report still has, of requests that went on since.
    """

    cell: CellT
    block_size: int
    place: int
    load: ReportedLoad = field(default_factory=ReportedLoad)
    keys: set[int] = field(default_factory=set)
    expected: dict[int, int] = field(default_factory=dict)
    settling: list[int] = field(default_factory=list)
    being_reported: list[Assignment[CellT]] = field(default_factory=list)
    unreported_tokens: int = 0
    done_tokens: int = 0

    @property
    def outstanding_tokens(self) -> int:
        """As last reported, and what this router knows to have changed since."""
        reported = max(0, self.load.outstanding_tokens - self.done_tokens)
        return reported + self.unreported_tokens

    @property
    def known_keys(self) -> set[int]:
        """Blocks that are, or soon will be, in the cache."""
        return self.keys | self.expected.keys()

    def has(self, key: int) -> bool:
        """Say whether a block is, or soon will be, in the cache."""
        return key in self.keys or key in self.expected

    def num_cached_tokens(self, prefixes: Iterable[Prefix]) -> int:
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

    # ------------------------------------------------------------------ requests

    def assign(
        self, prefixes: list[Prefix], num_tokens: int, num_sequences: int
    ) -> Assignment[CellT]:
        """Count a request as this cell's, its prefixes as expected here.

        Args:
            prefixes: of its prompt, longest first.
            num_tokens: of its prompt.
            num_sequences: that it will decode at once.
        """
        num_cached_tokens = self.num_cached_tokens(prefixes)
        assignment = Assignment(
            self.cell,
            num_cached_tokens,
            self,
            [key for _, block_size, key in prefixes if block_size == self.block_size],
            prefill_tokens=num_tokens - num_cached_tokens,
            decode_tokens=num_sequences * TOKENS_OF_DECODING,
        )
        for key in assignment.keys:
            self.expected[key] = self.expected.get(key, 0) + 1
        self.unreported_tokens += assignment.prefill_tokens + assignment.decode_tokens
        return assignment

    def queued(self, assignment: Assignment[CellT]) -> None:
        """The cell has queued a request: its next report counts it."""
        if assignment.is_unreported and not assignment.is_queued:
            assignment.is_queued = True
            self.being_reported.append(assignment)

    def computed(self, assignment: Assignment[CellT]) -> None:
        """A request has its first token, or wants none any more."""
        if not assignment.is_computed:
            assignment.is_computed = True
            self._count_done(assignment, assignment.prefill_tokens)
            self.settling.extend(assignment.keys)

    def ended(self, assignment: Assignment[CellT]) -> None:
        """A request is here no more."""
        if not assignment.is_ended:
            self.computed(assignment)
            assignment.is_ended = True
            self._count_done(assignment, assignment.decode_tokens)

    def _count_done(self, assignment: Assignment[CellT], num_tokens: int) -> None:
        """A part of a request is done that the last report has not seen done."""
        if assignment.is_unreported:
            self.unreported_tokens -= num_tokens
        else:
            self.done_tokens += num_tokens

    def report(self, load: ReportedLoad) -> list[int]:
        """Record what the cell reports of its load; what it reports of its cache must be in `keys`.

        Returns:
            Blocks that are not expected any more. They are in its cache only if in `keys`.
        """
        self.load = load
        self.done_tokens = 0
        for assignment in self.being_reported:
            assignment.is_unreported = False
            # What is done of it was taken off when it was.
            if not assignment.is_computed:
                self.unreported_tokens -= assignment.prefill_tokens
            if not assignment.is_ended:
                self.unreported_tokens -= assignment.decode_tokens
        self.being_reported.clear()
        dropped = []
        # What these have computed is among the reported blocks now, or gone already.
        for key in self.settling:
            self.expected[key] -= 1
            if not self.expected[key]:
                del self.expected[key]
                dropped.append(key)
        self.settling.clear()
        return dropped
