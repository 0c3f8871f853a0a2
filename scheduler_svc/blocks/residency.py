"""Which sequences hold blocks, and every way in which they get or lose them."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as AbstractSequence

from quire.contract.steps import SchedulerOutputs
from quire.contract.workers import CachedBlock
from scheduler_svc.blocks.manager import AllocStatus, BlockSpaceManager
from scheduler_svc.blocks.prefix_cache import PrefixCache
from scheduler_svc.sequences.preemption import PreemptionCounters
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup, SequenceStatus


class Residency:
    """Where each sequence's keys and values are: in the cache, in the host's memory, or nowhere.

    Each change concerns the workers too: orders for them collect here until the next step takes
    them.

    Args:
        block_manager: of the workers' cache.
        prefix_cache: blocks are published there before they are given up.
        counters: of the blocks moved.

    Attributes:
        groups: by the id of each sequence that holds blocks of the cache; only to be read.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        prefix_cache: PrefixCache,
        counters: PreemptionCounters,
    ) -> None:
        self._blocks = block_manager
        self._prefix_cache = prefix_cache
        self._counters = counters
        self._released_sequence_ids: list[int] = []
        self._forks: list[tuple[int, int]] = []
        self._blocks_to_swap_out: list[tuple[int, int]] = []
        self._blocks_to_swap_in: list[tuple[int, int]] = []
        self.groups: dict[int, SequenceGroup] = {}
        # By the id of each sequence that holds blocks of the host's memory.
        self._swapped: dict[int, SequenceGroup] = {}

    def move_orders_to(self, orders: SchedulerOutputs) -> None:
        """Move the orders that have collected here into those of a step.

        Mutates: orders.
        """
        orders.forks, self._forks = self._forks, []
        orders.released_sequence_ids, self._released_sequence_ids = self._released_sequence_ids, []
        orders.blocks_to_swap_out, self._blocks_to_swap_out = self._blocks_to_swap_out, []
        orders.blocks_to_swap_in, self._blocks_to_swap_in = self._blocks_to_swap_in, []

    @property
    def has_moves(self) -> bool:
        """Whether blocks are to be moved by orders that no step has yet."""
        return bool(self._blocks_to_swap_out or self._blocks_to_swap_in)

    def forget_workers(self) -> None:
        """Forget orders and prefixes: the workers have lost what they held. No group may run."""
        for orders in (
            self._released_sequence_ids,
            self._forks,
            self._blocks_to_swap_out,
            self._blocks_to_swap_in,
        ):
            orders.clear()
        self._blocks.forget_contents()

    def adopt(
        self, blocks: Iterable[CachedBlock], host_blocks: AbstractSequence[CachedBlock]
    ) -> None:
        """Let the contents that the workers have from before be found; see BlockSpaceManager."""
        self._blocks_to_swap_in.extend(self._blocks.adopt(blocks, host_blocks))

    @property
    def num_idle_slots(self) -> int:
        """Slots of blocks in use that hold no token yet."""
        block_size = self._blocks.block_size
        # Filled slots by block, since sequences of a group may share a block that is not full. All
        # blocks before those of the least computed sequence are full.
        filled: dict[int, int] = {}
        for group in _distinct(self.groups):
            running = group.in_status(SequenceStatus.RUNNING)
            first = min(each.num_computed_tokens for each in running) // block_size
            for sequence in running:
                rest = sequence.num_computed_tokens - first * block_size
                for block_id in self._blocks.block_table(sequence.sequence_id)[first:]:
                    filled[block_id] = max(filled.get(block_id, 0), min(max(rest, 0), block_size))
                    rest -= block_size
        return len(filled) * block_size - sum(filled.values())

    def find(self, sequence_id: int) -> SequenceGroup | None:
        """Return the group of a sequence that holds blocks, of the cache or of the host."""
        return self.groups.get(sequence_id) or self._swapped.get(sequence_id)

    def group_ids_of(self, outputs: SchedulerOutputs) -> set[int]:
        """Return the ids of the groups that are part of the step scheduled last."""
        return {self.groups[sequence_id].group_id for sequence_id in outputs.sequence_ids}

    @property
    def swapped_groups(self) -> list[SequenceGroup]:
        """Groups whose blocks are in the host's memory."""
        return _distinct(self._swapped)

    # ------------------------------------------------------------------ ways in

    def find_place(self, group: SequenceGroup) -> list[int] | None:
        """Return the cached blocks that a waiting group begins with, or None without room."""
        blocks, prefix, num_tokens = self._blocks, list[int](), 0
        swapped = group.in_status(SequenceStatus.SWAPPED)
        waiting = group.in_status(SequenceStatus.WAITING)
        num_more = blocks.num_blocks_to_swap_in(each.sequence_id for each in swapped)
        for sequence in swapped:
            # For what it has yet to compute, and perhaps a copy of a shared block.
            num_more += 1 + blocks.num_blocks_for(sequence.num_tokens)
            num_more -= blocks.num_blocks_for(sequence.num_computed_tokens)
        if not swapped:
            first = waiting.pop(0)
            num_tokens = first.num_tokens
            # A prompt whose log-probabilities are wanted must be computed.
            if group.sampling_params.prompt_logprobs is None:
                prefix = self._prefix_cache.find(first, group.cache_salt)
        for sequence in waiting:
            num_more += blocks.num_blocks_for(sequence.num_tokens)
            num_more -= sequence.num_shareable_tokens // blocks.block_size
        status = blocks.can_allocate(num_tokens, prefix, min(num_more, blocks.num_blocks))
        # Admission refuses groups that can never fit, and ends them before they outgrow the cache.
        assert status is not AllocStatus.NEVER, f"group {group.group_id} cannot fit"
        return prefix if status is AllocStatus.OK else None

    def start(self, group: SequenceGroup, prefix: list[int]) -> None:
        """Give a group that starts the place that was found for it.

        Args:
            group: its swapped sequences come back from the host's memory. If there are none, its
                first sequence gets blocks for all its tokens, even if a step computes only some.
            prefix: what `find_place` returned.
        """
        swapped = group.in_status(SequenceStatus.SWAPPED)
        if swapped:
            pairs = self._blocks.swap_in([each.sequence_id for each in swapped])
            self._blocks_to_swap_in.extend(pairs)
            self._counters.swapped_in_blocks += len(pairs)
            for sequence in swapped:
                self._set_running(group, sequence)
        else:
            first = next(iter(group.sequences.values()))
            self._blocks.allocate(first.sequence_id, first.num_tokens, prefix)
            self._prefix_cache.take(first, prefix)
            self._set_running(group, first)

    def fork_waiting(self, group: SequenceGroup) -> None:
        """Let sequences that wait for the prompt of their group share it once it is computed."""
        waiting = group.in_status(SequenceStatus.WAITING)
        running = group.in_status(SequenceStatus.RUNNING)
        if not waiting or not running:
            return
        parent = running[0]
        if parent.num_computed_tokens < parent.num_shareable_tokens:
            return
        for child in waiting:
            self._share(group, parent, child, parent.num_shareable_tokens)

    def fork(self, group: SequenceGroup, parent: Sequence, child_id: int) -> Sequence:
        """Add a copy of a sequence to its group, on the workers too.

        Args:
            group: of the sequence.
            parent: the sequence to copy.
            child_id: of the copy.
        """
        child = Sequence(child_id, parent.sequence_index, ())
        child.token_ids = list(parent.token_ids)
        child.num_prompt_tokens = parent.num_prompt_tokens
        child.num_charged_tokens = parent.num_charged_tokens
        child.is_mirrored = True
        group.sequences[child_id] = child
        self._share(group, parent, child, parent.num_computed_tokens)
        self._forks.append((parent.sequence_id, child_id))
        return child

    def _share(
        self, group: SequenceGroup, parent: Sequence, child: Sequence, num_tokens: int
    ) -> None:
        """Let `child` share the blocks of the first tokens of `parent`."""
        num_full = num_tokens // self._blocks.block_size
        self._blocks.fork(parent.sequence_id, child.sequence_id, num_tokens)
        child.num_computed_tokens = num_tokens
        child.block_hashes = parent.block_hashes[:num_full]
        child.num_published_blocks = min(parent.num_published_blocks, num_full)
        self._set_running(group, child)

    def _set_running(self, group: SequenceGroup, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        self.groups[sequence.sequence_id] = group
        self._swapped.pop(sequence.sequence_id, None)

    # ------------------------------------------------------------------ ways out

    def swap_out(self, group: SequenceGroup, lengths: Mapping[int, int]) -> None:
        """Move a group's blocks to the host's memory.

        Args:
            group: that runs.
            lengths: tokens to keep of each running sequence, by its id.
        """
        for sequence_id in lengths:
            self._prefix_cache.publish(group.sequences[sequence_id], group.cache_salt)
        pairs = self._blocks.swap_out(lengths)
        self._blocks_to_swap_out.extend(pairs)
        self._counters.swapped_out_blocks += len(pairs)
        for sequence_id, num_tokens in lengths.items():
            sequence = group.sequences[sequence_id]
            self._forget(sequence, SequenceStatus.SWAPPED)
            sequence.num_computed_tokens = num_tokens
            self._swapped[sequence_id] = group

    def reset(self, group: SequenceGroup) -> None:
        """Take all blocks from a group that no longer runs; it is computed again, output kept."""
        for sequence in group.sequences.values():
            self.free(group, sequence, SequenceStatus.WAITING)

    def withdraw(self, group: SequenceGroup) -> None:
        """Publish nothing of a group that has failed: its blocks may hold NaN."""
        for sequence in group.in_status(SequenceStatus.RUNNING):
            self._blocks.withdraw(sequence.sequence_id)
            sequence.num_computed_tokens = 0

    def free(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        status: SequenceStatus = SequenceStatus.FINISHED,
    ) -> None:
        """Take all blocks from a sequence, wherever they are; they are free unless shared.

        Args:
            group: of the sequence.
            sequence: to be left in `status`.
            status: FINISHED or WAITING.
        """
        if sequence.status is SequenceStatus.RUNNING:
            self._prefix_cache.publish(sequence, group.cache_salt)
            self._blocks.free(sequence.sequence_id)
        elif sequence.status is SequenceStatus.SWAPPED:
            self._blocks.free_host(sequence.sequence_id)
            del self._swapped[sequence.sequence_id]
        self._forget(sequence, status)

    def _forget(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Mark a sequence as without blocks of the cache, and have the workers forget it."""
        if sequence.is_mirrored:
            self._released_sequence_ids.append(sequence.sequence_id)
        self.groups.pop(sequence.sequence_id, None)
        sequence.is_mirrored = False
        sequence.num_computed_tokens = 0
        sequence.num_pending_tokens = 0
        sequence.num_published_blocks = 0
        sequence.status = status

    # ------------------------------------------------------------------ checks

    def check_invariants(
        self, running: Iterable[SequenceGroup], waiting: Iterable[SequenceGroup]
    ) -> None:
        """Raise AssertionError unless statuses, block tables and counts agree."""
        self._blocks.check_invariants()
        resident, swapped = {}, {}
        for group in running:
            for sequence in group.sequences.values():
                if sequence.status is SequenceStatus.WAITING:
                    _check_waiting(sequence)
                else:
                    resident[sequence.sequence_id] = group
                    self._check_running(sequence)
        for group in waiting:
            for sequence in group.sequences.values():
                if sequence.status is SequenceStatus.WAITING:
                    _check_waiting(sequence)
                else:
                    swapped[sequence.sequence_id] = group
                    assert sequence.status is SequenceStatus.SWAPPED
                    assert 0 <= sequence.num_computed_tokens < sequence.num_tokens
                    assert sequence.num_pending_tokens == 0
        assert resident == self.groups, "sequences and groups disagree"
        assert resident.keys() == self._blocks.sequence_ids, "blocks without a running sequence"
        assert swapped == self._swapped, "swapped sequences and groups disagree"
        assert swapped.keys() == self._blocks.swapped_sequence_ids, (
            "host blocks without a swapped sequence"
        )

    def _check_running(self, sequence: Sequence) -> None:
        assert sequence.status is SequenceStatus.RUNNING
        num_expected = sequence.num_tokens + sequence.num_pending_tokens
        assert 0 <= sequence.num_computed_tokens <= num_expected
        assert 0 <= sequence.num_pending_tokens <= 2, "more than two steps in flight"
        num_blocks = len(self._blocks.block_table(sequence.sequence_id))
        num_slots = num_blocks * self._blocks.block_size
        assert sequence.num_computed_tokens <= num_slots, "computed tokens without slots"


def _distinct(groups: Mapping[int, SequenceGroup]) -> list[SequenceGroup]:
    return list({group.group_id: group for group in groups.values()}.values())


def _check_waiting(sequence: Sequence) -> None:
    assert sequence.status is SequenceStatus.WAITING
    assert sequence.num_computed_tokens == sequence.num_pending_tokens == 0
    assert not sequence.is_mirrored
