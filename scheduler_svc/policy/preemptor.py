"""Which group is preempted, and how it loses its blocks: moved to the host's memory, or freed."""

from collections.abc import Callable, Mapping

from quire.contract.engine_options import PreemptionMode
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.blocks.residency import Residency
from scheduler_svc.policy.queues import Queues
from scheduler_svc.policy.step_builder import StepBuilder
from scheduler_svc.sequences.preemption import PreemptionCosts, PreemptionCounters
from scheduler_svc.sequences.sequence import SequenceGroup, SequenceStatus


class Preemptor:
    """Preempts groups and takes their blocks, in the cheaper way or the configured one.

    Args:
        block_manager: of the workers' cache.
        queues: the groups.
        residency: which sequences hold blocks.
        mode: what becomes of the blocks.
        costs: measured prices of moving and of computing.
        counters: of the preemptions.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        queues: Queues,
        residency: Residency,
        mode: PreemptionMode,
        costs: PreemptionCosts,
        counters: PreemptionCounters,
    ) -> None:
        self._blocks = block_manager
        self._queues = queues
        self._residency = residency
        self._mode = mode
        self._costs = costs
        self._counters = counters

    def make_room(self, num_blocks: int, group: SequenceGroup, step: StepBuilder) -> bool:
        """Preempt from the end until `num_blocks` are free; return False if that took `group` too.

        Mutates: the groups that are preempted, and step.
        """
        while num_blocks > self._blocks.num_free_blocks:
            step.has_preempted = True
            if self.preempt_last() is group:
                return False
        return True

    def yield_to_first_waiting(
        self, find_place: Callable[[SequenceGroup], list[int] | None]
    ) -> bool:
        """Preempt running groups that come after the first waiting one until that one has a place.

        Only priorities within a tenant do: else what waits has arrived after what runs.

        Args:
            find_place: returns None for a group that cannot run.

        Returns:
            Whether there was any.
        """
        has_yielded = False
        waiting, running = self._queues.waiting, self._queues.running
        while waiting and running:
            first = waiting.first
            last = next((each for each in reversed(running) if each.tenant == first.tenant), None)
            if last is None or first.order > last.order or find_place(first) is not None:
                break
            self.preempt(last)
            has_yielded = True
        return has_yielded

    def preempt_last(self, may_swap: bool = True) -> SequenceGroup:
        """Preempt the last running group and return it; it keeps its place in the order.

        Args:
            may_swap: whether its blocks may be moved to the host's memory.
        """
        group = self._queues.running.last
        self.preempt(group, may_swap)
        return group

    def preempt(self, group: SequenceGroup, may_swap: bool = True) -> None:
        """Preempt a running group, as `preempt_last` does."""
        self._queues.preempt(group)
        self._take_blocks(group, may_swap)

    def _take_blocks(self, group: SequenceGroup, may_swap: bool) -> None:
        """Take all blocks of the cache from a group that was preempted.

        Mutates: the group's sequences, which are swapped or wait to be computed again.

        Args:
            group: holds blocks.
            may_swap: whether its blocks may be moved to the host's memory.
        """
        self._counters.preemptions += 1
        # A token in flight is dropped; computing the one before it again samples it again.
        lengths = {
            each.sequence_id: min(each.num_computed_tokens, each.num_tokens - 1)
            for each in group.in_status(SequenceStatus.RUNNING)
        }
        if may_swap and self._should_swap(group, lengths):
            self._counters.swaps += 1
            self._residency.swap_out(group, lengths)
        else:
            self._counters.recomputed_tokens += sum(lengths.values())
            self._residency.reset(group)
        if group.beam_search is not None:
            group.beam_search.forget_reports()

    def _should_swap(self, group: SequenceGroup, lengths: Mapping[int, int]) -> bool:
        """Return whether to move a group's blocks rather than to compute their tokens again.

        Args:
            group: holds blocks.
            lengths: tokens to keep of each running sequence, by its id.
        """
        num_blocks = self._blocks.num_blocks_held(lengths)
        if (
            self._mode is PreemptionMode.RECOMPUTE
            or not num_blocks
            or num_blocks > self._blocks.num_free_host_blocks
        ):
            return False
        if self._mode is PreemptionMode.SWAP:
            return True
        num_shared = next(iter(group.sequences.values())).num_shareable_tokens
        num_tokens = sum(lengths.values()) - (len(lengths) - 1) * num_shared
        return self._costs.moving_is_cheaper(num_tokens, num_blocks, len(lengths))
