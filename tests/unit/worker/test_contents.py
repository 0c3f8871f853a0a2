"""What workers report of their caches is true, and a new scheduler adopts what all agree on."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from quire.contract.engine_options import CacheOptions, PreemptionMode
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.contract.workers import CachedBlock, CacheSpec, WorkerMirror
from scheduler_svc.blocks.allocator import BlockAllocator
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.workers import adoption
from scheduler_svc.workers.adoption import CacheContents, common_cache, common_contents
from tests.fakes.fake_model import FakeModel, WrongOrderError
from tests.unit.scheduler.factories import EOS_TOKEN_ID, VOCAB_SIZE, Cell, make_params
from worker_svc.steps import contents
from worker_svc.steps.batch import Batch
from worker_svc.steps.mirror import SequenceMirror

BLOCK_SIZE = 4
NUM_BLOCKS = 48
NUM_HOST_BLOCKS = 24
SEEDS = range(12)


class Rank:
    """A worker: the mirror under test, and a model that knows what its cache really holds."""

    def __init__(self) -> None:
        self.model = FakeModel(BLOCK_SIZE, NUM_BLOCKS, VOCAB_SIZE, NUM_HOST_BLOCKS)
        self.mirror = SequenceMirror(BLOCK_SIZE, NUM_BLOCKS, 128, VOCAB_SIZE, (EOS_TOKEN_ID,))

    def step(self, outputs: SchedulerOutputs) -> StepResult:
        batch = self.mirror.apply(outputs)
        result = self.model.step(outputs)
        assert tuple(result.sequence_ids) == batch.sampling_ids
        self.mirror.settle(batch, np.array(result.token_ids), np.ones(len(batch.rows), np.bool_))
        return result

    def report(self) -> WorkerMirror:
        """What the worker reports; all of it must be true, and no full block be missing."""
        report = WorkerMirror(
            blocks=self.mirror.contents.blocks, host_blocks=self.mirror.contents.host_blocks
        )
        assert set(report.blocks) <= set(self.model.contents), "the cache holds something else"
        assert set(report.host_blocks) <= set(self.model.host_contents), "the host does, too"
        for block in report.blocks:
            found = self.mirror.contents.find(block.digest)
            assert found is None or self.model.contents.count(
                CachedBlock(found[0], block.depth, block.digest)
            ), "another block is found"
        reported = {block.block_id for block in report.blocks}
        for sequence in self.mirror.sequences():
            full = sequence.block_ids[: sequence.num_computed_tokens // BLOCK_SIZE]
            assert reported.issuperset(full), "a computed block is missing"
        return report


class Ranks:
    """Two workers, the second of which may miss the last steps."""

    def __init__(self) -> None:
        self.both = (Rank(), Rank())
        self.num_behind = 0
        self._late: list[SchedulerOutputs] = []

    def step(self, outputs: SchedulerOutputs) -> StepResult:
        self._late.append(outputs)
        while len(self._late) > self.num_behind:
            self.both[1].step(self._late.pop(0))
        return self.both[0].step(outputs)

    def forget_sequences(self) -> None:
        self._late.clear()
        for rank in self.both:
            rank.mirror.clear()
            rank.model.sequences.clear()


def make_cell(ranks: Ranks, num_blocks: int = NUM_BLOCKS) -> Cell:
    cell = Cell(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
        num_host_blocks=NUM_HOST_BLOCKS,
        preemption_mode=PreemptionMode.SWAP,
        max_num_batched_tokens=24,
    )
    cell.model = ranks  # type: ignore[assignment]
    return cell


def take_over(seed: int) -> CacheContents:
    """Kill a scheduler at some step and check what the next one makes of the workers' caches."""
    rng = random.Random(seed)
    ranks = Ranks()
    ranks.num_behind = seed % 2
    cell, requests = make_cell(ranks), {}
    beginnings = [[rng.randrange(4, VOCAB_SIZE) for _ in range(9)] for _ in range(3)]
    for number in range(10):
        options = [{}, {}, {"n": 3}, {"n": 2, "use_beam_search": True, "temperature": 0.0}]
        prompt = rng.choice(beginnings) + [rng.randrange(4, VOCAB_SIZE) for _ in range(number)]
        params = make_params(max_tokens=30, seed=number, **rng.choice(options))
        salt = rng.choice(["", "salt"])
        requests[cell.add(prompt, params, cache_salt=salt)] = prompt, params, salt
    for _ in range(rng.randrange(1, 60)):
        if cell.has_work:
            cell.step()
        if rng.random() < 0.1:
            ranks.both[0].report()
    found = common_contents([rank.report() for rank in ranks.both])
    for rank in ranks.both:
        assert set(found.blocks) <= set(rank.model.contents), "a rank has not computed that"
        assert set(found.host_blocks) <= set(rank.model.host_contents)

    ranks.forget_sequences()
    ranks.num_behind = 0
    successor = make_cell(ranks)
    successor.scheduler.residency.adopt(found.blocks, found.host_blocks)
    successor.scheduler.check_invariants()
    assert successor.blocks.num_cached_blocks >= len(found.blocks)
    resumed = {}
    for group_id, (prompt, params, salt) in requests.items():
        outputs = {
            index: tokens
            for (group, index), tokens in cell.outputs.items()
            if group == group_id and not params.use_beam_search
        }
        resumed[group_id] = successor.add(prompt, params, outputs=outputs or None, cache_salt=salt)
    successor.run()
    undisturbed = Cell(num_blocks=256, block_size=BLOCK_SIZE, num_host_blocks=1)
    for group_id, (prompt, params, _) in requests.items():
        alone = undisturbed.add(prompt, params)
        undisturbed.run()
        if params.use_beam_search:
            expected, got = undisturbed.hypotheses[alone], successor.hypotheses[resumed[group_id]]
            assert got == expected
            continue
        for index in range(params.n):
            before = cell.outputs[group_id, index]
            after = successor.outputs[resumed[group_id], index]
            assert before + after == undisturbed.outputs[alone, index]
    for rank in ranks.both:
        rank.report()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_successor_adopts_what_all_ranks_have_computed(seed: int) -> None:
    take_over(seed)


def test_the_cases_above_adopt_blocks_of_the_cache_and_of_the_host() -> None:
    found = [take_over(seed) for seed in SEEDS]
    assert sum(len(each.blocks) for each in found) > 100
    assert any(each.host_blocks for each in found)
    assert any(each.num_offered > len(each.blocks) + len(each.host_blocks) for each in found)


# ---------------------------------------------------------------- planted bugs


def nothing(*_: object) -> None:
    pass


def record_one_more(record: Callable[..., None]) -> Callable[..., None]:
    def recorded(self: SequenceMirror, batch: Batch) -> None:
        self.held.num_computed[batch.rows] += 1
        record(self, replace(batch, seq_lens=batch.seq_lens + 1))
        self.held.num_computed[batch.rows] -= 1

    return recorded


def first_rank_alone(ranks: list[tuple[CachedBlock, ...]]) -> tuple[CachedBlock, ...]:
    return tuple({block.digest: block for block in ranks[0]}.values())


def swapped_digests(blocks: dict[int, tuple[int, bytes]]) -> tuple[CachedBlock, ...]:
    others = [*blocks.values()][1:] + [*blocks.values()][:1]
    return tuple(CachedBlock(block_id, *entry) for block_id, entry in zip(blocks, others, strict=1))


PLANTED = {
    "new owners do not drop": (contents.CacheContents, "drop", nothing),
    "moves are not followed": (contents.CacheContents, "move", nothing),
    "a block too early": (SequenceMirror, "_record", record_one_more(SequenceMirror._record)),
    "one rank is believed": (adoption, "_common", first_rank_alone),
    "digests of other blocks": (contents, "_listed", swapped_digests),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[bug])
    with pytest.raises((AssertionError, WrongOrderError)):
        for seed in SEEDS:
            take_over(seed)


# ---------------------------------------------------------------- what ranks agree on


def block(block_id: int, name: str, depth: int = 1) -> CachedBlock:
    return CachedBlock(block_id, depth, name.encode().ljust(32))


def agreed(*ranks: tuple[CachedBlock, ...]) -> list[int]:
    found = common_contents([WorkerMirror(blocks=blocks) for blocks in ranks])
    return [each.block_id for each in found.blocks]


def test_only_what_all_ranks_report_of_a_block_is_adopted() -> None:
    rank = (block(3, "a"), block(1, "b"), block(2, "c"))
    assert agreed(rank, rank) == [3, 1, 2]
    assert agreed(rank, rank[1:]) == [1, 2]
    assert agreed(rank, ()) == [], "a rank that was replaced has nothing"
    tampered = (rank[0], replace(rank[1], digest=bytes(32)), rank[2])
    assert agreed(rank, tampered) == agreed(tampered, rank) == [3, 2]
    elsewhere = (rank[0], replace(rank[1], block_id=7), rank[2])
    assert agreed(rank, elsewhere) == [3, 2]


def test_a_content_is_adopted_once_where_it_was_used_last() -> None:
    assert agreed((block(1, "a"), block(2, "b"), block(3, "a"))) == [2, 3]
    mirror = WorkerMirror(blocks=(block(1, "a"),), host_blocks=(block(1, "a"), block(0, "b")))
    found = common_contents([mirror, mirror])
    assert (found.host_blocks, found.num_offered) == ((block(0, "b"),), 2)


def test_nothing_is_adopted_from_a_cache_that_is_new_or_another() -> None:
    mirror = WorkerMirror(cache=CacheSpec(8), blocks=(block(1, "a"),))
    assert common_contents([mirror], is_kept=False) == CacheContents(num_offered=1)
    assert common_cache([mirror, mirror], CacheOptions()) == CacheSpec(8)
    assert common_cache([mirror, WorkerMirror()], CacheOptions()) is None
    assert common_cache([mirror, replace(mirror, cache=CacheSpec(9))], CacheOptions()) is None
    assert common_cache([mirror], CacheOptions(block_size=32)) is None


# ---------------------------------------------------------------- into the block manager


def test_adopted_blocks_are_found_and_the_least_recently_used_goes_first() -> None:
    blocks = BlockSpaceManager(BLOCK_SIZE, 4, 0.0)
    adopted = [block(2, "a", 2), block(0, "b"), block(3, "c")]
    assert blocks.adopt(adopted) == []
    blocks.check_invariants()
    assert (blocks.num_free_blocks, blocks.num_cached_blocks) == (4, 3)
    assert blocks.find_prefix([each.digest for each in adopted]) == [2, 0, 3]
    blocks.allocate(1, 2 * BLOCK_SIZE)
    assert list(blocks.block_table(1)) == [1, 2], "the empty one, then that used longest ago"
    assert not blocks.can_find(adopted[0].digest)
    blocks.allocate(2, BLOCK_SIZE, blocks.find_prefix([adopted[2].digest]))
    blocks.check_invariants()
    blocks.forget_contents()
    blocks.check_invariants()


def test_blocks_of_the_host_come_back_as_far_as_there_is_room() -> None:
    blocks = BlockSpaceManager(BLOCK_SIZE, 3, 0.0, 4)
    host_blocks = [block(0, "x"), block(3, "y"), block(1, "z")]
    pairs = blocks.adopt([block(1, "a")], host_blocks)
    assert [host for host, _ in pairs] == [3, 1]
    assert sorted(device for _, device in pairs) == [0, 2]
    blocks.check_invariants()
    found = blocks.find_prefix([each.digest for each in host_blocks[1:]])
    assert found == [device for _, device in pairs]
    full = BlockAllocator(1)
    full.adopt([block(0, "a")])
    full.check_invariants()
    assert not full.unused


def test_a_block_that_comes_from_the_host_is_found_once_its_steps_are_over() -> None:
    held = contents.CacheContents(BLOCK_SIZE)
    block = CachedBlock(3, 1, bytes(32))
    held.add(block)
    assert held.find(block.digest) == (3, (1, block.digest))
    held.move(SchedulerOutputs(blocks_to_swap_out=[(3, 0)]))
    held.drop([3])
    assert held.find(block.digest) is None
    held.move(SchedulerOutputs(blocks_to_swap_in=[(0, 5)]))
    for _ in range(2):  # the step that brings it, and one that runs beside that
        assert held.find(block.digest) is None
        held.move(SchedulerOutputs())
    found = held.find(block.digest)
    assert found == (5, (1, block.digest))
    assert held.still_holds(*found)
    held.drop([5])
    held.add(CachedBlock(5, 1, block.digest))
    assert not held.still_holds(*found), "it was written again meanwhile"
