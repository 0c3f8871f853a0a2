"""Groups in the order of their arrival and priority."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from scheduler_svc.sequences.sequence import SequenceGroup

_ORDER = attrgetter("order")


def queue_order(
    arrived_at: float, priority: int, ageing_s: float, group_id: int
) -> tuple[float, int]:
    """Return a group's place among others: the smaller one goes first.

    No group waits for ever: each level of priority is worth `ageing_s` seconds of waiting.

    Args:
        arrived_at: in seconds.
        priority: of the request; a smaller one goes first.
        ageing_s: how much later each level of priority counts as come, in seconds.
        group_id: breaks ties, in order of arrival.
    """
    return arrived_at + priority * ageing_s, group_id


class GroupQueue:
    """Groups by id, and sorted by their `order`; queues of thousands cost microseconds.

    Attributes:
        num_prompt_tokens: of the prompts of all groups. Only to be read.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, SequenceGroup] = {}
        self._ordered: list[SequenceGroup] = []
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._by_id

    def __reversed__(self) -> Iterator[SequenceGroup]:
        """Yield the groups from the last to the first; the queue must not change meanwhile."""
        return reversed(self._ordered)

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yield the groups in order; the queue must not change meanwhile."""
        return iter(self._ordered)

    @property
    def first(self) -> SequenceGroup:
        """The group that goes first. There must be one."""
        return self._ordered[0]

    @property
    def last(self) -> SequenceGroup:
        """The group that goes last. There must be one."""
        return self._ordered[-1]

    def num_before(self, order: tuple[float, int]) -> int:
        """Return how many groups go before one of an order."""
        return bisect_left(self._ordered, order, key=_ORDER)

    def get(self, group_id: int) -> SequenceGroup | None:
        """Return the group of an id, or None if it is not here."""
        return self._by_id.get(group_id)

    def add(self, group: SequenceGroup) -> None:
        """Put a group in its place."""
        self._by_id[group.group_id] = group
        insort(self._ordered, group, key=_ORDER)
        self.num_prompt_tokens += group.num_prompt_tokens

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out. It must be here."""
        del self._by_id[group.group_id]
        del self._ordered[bisect_left(self._ordered, group.order, key=_ORDER)]
        self.num_prompt_tokens -= group.num_prompt_tokens

    def check_invariants(self) -> None:
        """Raise AssertionError unless the groups are in order and counted."""
        orders = [group.order for group in self]
        assert orders == sorted(set(orders)), "a queue is not in order"
        assert all(group.sequences for group in self), "an ended group is queued"
        num_tokens = sum(group.num_prompt_tokens for group in self)
        assert self.num_prompt_tokens == num_tokens, "prompts miscounted"
