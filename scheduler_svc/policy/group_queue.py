"""Groups in order of rank."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from scheduler_svc.sequences.sequence import SequenceGroup

_RANK = attrgetter("rank")


class GroupQueue:
    """Groups by id, and in order of their rank; queues of thousands cost microseconds."""

    def __init__(self) -> None:
        self._by_id: dict[int, SequenceGroup] = {}
        self._ordered: list[SequenceGroup] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._by_id

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yield the groups, first ranks first; the queue must not change meanwhile."""
        return iter(self._ordered)

    @property
    def first(self) -> SequenceGroup:
        """The group of the first rank. There must be one."""
        return self._ordered[0]

    @property
    def last(self) -> SequenceGroup:
        """The group of the last rank. There must be one."""
        return self._ordered[-1]

    def get(self, group_id: int) -> SequenceGroup | None:
        """Return the group of an id, if it is here."""
        return self._by_id.get(group_id)

    def add(self, group: SequenceGroup) -> None:
        """Put a group in its place."""
        self._by_id[group.group_id] = group
        insort(self._ordered, group, key=_RANK)

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out. It must be here."""
        del self._by_id[group.group_id]
        del self._ordered[bisect_left(self._ordered, group.rank, key=_RANK)]
