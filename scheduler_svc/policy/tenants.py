"""Whose group starts next: a virtual token counter for each tenant.

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 4: each tenant is
charged for the tokens that are computed for it, and of those that wait the one charged least goes
first. So two tenants that always have something waiting get shares in proportion to their weights,
whatever the number and length of their requests, and nothing is idle while anything waits.
"""

from collections.abc import Iterator
from itertools import chain
from math import ceil

from scheduler_svc.policy.group_queue import GroupQueue
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup

# Tenants without groups whose counters are kept.
MAX_IDLE = 1024


class Tenant:
    """What is known of a tenant.

    Attributes:
        name: "" for all whose tenant is not known.
        weight: of its share.
        counter: tokens that were computed for it, over its weight.
        num_groups: that have not ended.
        num_uncounted_tokens: that it was charged for and no quota counts yet.
        waiting: those of its groups that wait.
    """

    __slots__ = ("counter", "name", "num_groups", "num_uncounted_tokens", "waiting", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = 0.0
        self.num_groups = 0
        self.num_uncounted_tokens = 0
        self.waiting = GroupQueue()

    def charge(self, num_tokens: int, weight: float) -> None:
        """Charge for tokens of a group, at its weight."""
        self.counter += num_tokens / weight
        self.num_uncounted_tokens += num_tokens


class WaitingGroups:
    """The groups that wait, of all tenants.

    Charged are a prompt, less what was found in the cache, when its group starts, and each output
    token once it is computed; nothing twice. With one tenant that waits counters decide nothing:
    what it owes is summed up when another one comes, so that steps cost no more.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        # Without groups; the one that ended last comes last.
        self._idle: dict[str, Tenant] = {}
        self._waiting: dict[str, Tenant] = {}
        # The last tenant that had nothing waiting any more.
        self._last_left: Tenant | None = None
        self._num_groups = 0

    def __len__(self) -> int:
        return self._num_groups

    def __contains__(self, group_id: int) -> bool:
        return self.get(group_id) is not None

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yield the groups, in order for each tenant; they must not change meanwhile."""
        return chain.from_iterable(tenant.waiting for tenant in self._waiting.values())

    @property
    def first(self) -> SequenceGroup:
        """The group that goes first. There must be one."""
        tenants = self._waiting.values()
        if len(tenants) == 1:
            (tenant,) = tenants
        else:
            # One that has just been lifted to another's counter goes before it.
            tenant = min(
                tenants, key=lambda each: (each.counter, each.num_groups, each.waiting.first.order)
            )
        return tenant.waiting.first

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts of all groups."""
        return sum(tenant.waiting.num_prompt_tokens for tenant in self._waiting.values())

    def num_ahead(self, name: str, weight: float, order: tuple[float, int]) -> int:
        """Return how many groups are likely to start before a new one.

        Args:
            name: of its tenant.
            weight: of the tenant's share.
            order: of the group, see `queue_order`.
        """
        own = self._waiting.get(name)
        num_own = own.waiting.num_before(order) if own else 0
        return num_own + sum(
            min(len(each.waiting), ceil((num_own + 1) * each.weight / weight))
            for each in self._waiting.values()
            if each is not own
        )

    def get(self, group_id: int) -> SequenceGroup | None:
        """Return the group of an id, or None if it is not here."""
        for tenant in self._waiting.values():
            if group := tenant.waiting.get(group_id):
                return group
        return None

    def find_tenant(self, name: str) -> Tenant | None:
        """Return the tenant of a name, or None if nothing is known of it."""
        return self._tenants.get(name)

    # ------------------------------------------------------------------ transitions

    def introduce(self, group: SequenceGroup, running: GroupQueue) -> None:
        """Let a group wait that is new.

        A tenant of which nothing waited gets no credit for that time: it is lifted to the least
        counter of those that wait, or to the last one that did.

        Args:
            group: of a tenant that may be new, too.
            running: the groups that run.
        """
        name = group.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        self._idle.pop(name, None)
        tenant.weight = group.weight
        tenant.num_groups += 1
        if name not in self._waiting:
            if len(self._tenants) - len(self._idle) > 1:  # else there is nobody to compare with
                self.charge_running(running)
            self._lift(tenant)
        self.add(group)

    def _lift(self, tenant: Tenant) -> None:
        least = min((each.counter for each in self._waiting.values()), default=None)
        if least is None and self._last_left is not None:
            least = self._last_left.counter
        tenant.counter = max(tenant.counter, least or 0.0)

    def add(self, group: SequenceGroup) -> None:
        """Let a group wait, again if it was preempted."""
        tenant = self._tenants[group.tenant]
        self._waiting[tenant.name] = tenant
        tenant.waiting.add(group)
        self._num_groups += 1

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out. It must be here."""
        tenant = self._tenants[group.tenant]
        tenant.waiting.remove(group)
        self._num_groups -= 1
        if not tenant.waiting:
            del self._waiting[tenant.name]
            self._last_left = tenant

    def forget(self, group: SequenceGroup) -> None:
        """Forget a group that has ended, and a tenant that had none for longest."""
        tenant = self._tenants[group.tenant]
        tenant.num_groups -= 1
        if not tenant.num_groups:
            self._idle[tenant.name] = tenant
            if len(self._idle) > MAX_IDLE:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._tenants[oldest]

    # ------------------------------------------------------------------ charges

    def charge_start(self, group: SequenceGroup) -> None:
        """Charge for what a group that has just started will compute; its cached prefix is free."""
        if not group.is_charged:
            group.is_charged = True
            first = next(iter(group.sequences.values()))
            num_new = first.num_tokens - first.num_computed_tokens
            self._tenants[group.tenant].charge(num_new, group.weight)

    def charge(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Charge for what a sequence has computed since: all of its output but the last token."""
        num_new = sequence.num_tokens - 1 - sequence.num_charged_tokens
        if num_new > 0:
            self._tenants[group.tenant].charge(num_new, group.weight)
            sequence.num_charged_tokens += num_new

    def settle(self, running: GroupQueue) -> None:
        """Charge for all that was computed, where several tenants wait."""
        if len(self._waiting) > 1:
            self.charge_running(running)

    def charge_running(self, running: GroupQueue) -> None:
        """Charge for all that was computed."""
        for group in running:
            for sequence in group.sequences.values():
                self.charge(group, sequence)

    def check_invariants(self, num_running: int) -> None:
        """Raise AssertionError unless queues and counts agree.

        Args:
            num_running: groups that run.
        """
        for tenant in self._tenants.values():
            tenant.waiting.check_invariants()
            assert bool(tenant.waiting) == (tenant.name in self._waiting), "a queue is lost"
            assert bool(tenant.num_groups) != (tenant.name in self._idle), "a tenant is lost"
        assert self._num_groups == sum(len(each.waiting) for each in self._waiting.values())
        num_groups = sum(each.num_groups for each in self._tenants.values())
        assert num_groups == self._num_groups + num_running, "groups of tenants miscounted"
