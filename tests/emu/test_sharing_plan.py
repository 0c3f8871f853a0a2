"""What decoding sequences share: found in their block tables, planned once, and read less often."""

import math
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.emu.planted_bugs import Builder

PARTITION_TOKENS = 512
# Below it sequences are not grouped.
LEAST_SEQUENCES = 4


@dataclass(frozen=True)
class Sequence:
    """Tokens and rows of a sequence, and its blocks."""

    length: int
    blocks: tuple[int, ...]
    rows: int = 1


@dataclass(frozen=True)
class Step:
    """What is planned; the launches are an H100's at heads of 128."""

    sequences: tuple[Sequence, ...]
    num_kv_heads: int = 8
    group: int = 4
    window: int = 0
    block_size: int = 16
    shared_columns: int = 128
    shared_blocks: int = 132
    columns: int = 8
    blocks_at_once: int = 264
    max_slots: int = 1008

    def line(self) -> str:
        numbers = (
            *(self.num_kv_heads, self.group, self.window, self.block_size, self.shared_columns),
            *(self.shared_blocks, self.columns, self.blocks_at_once, self.max_slots),
            len(self.sequences),
        )
        sequences = ((each.length, each.rows, *each.blocks) for each in self.sequences)
        return " ".join(map(str, (*numbers, *(number for each in sequences for number in each))))

    def partition(self, seq: int, index: int) -> tuple[int, ...]:
        """Return the blocks of a partition."""
        size = PARTITION_TOKENS // self.block_size
        return self.sequences[seq].blocks[: (index + 1) * size]

    @property
    def partition_bytes(self) -> int:
        """Of a kv head's keys and values of 128 elements of 16 bits."""
        return PARTITION_TOKENS * 128 * 2 * 2


@dataclass(frozen=True)
class SharedItem:
    seq: int
    kv_head: int
    partitions: range
    slot: int
    is_prefix: bool
    members: tuple[int, ...]


@dataclass(frozen=True)
class Item:
    seq: int
    kv_head: int
    column: int
    partitions: range
    slot: int
    num_shared: int
    shared_row: int
    shared_columns: int


@dataclass(frozen=True)
class Plan:
    microseconds: float
    most_shared: int
    groups: list[tuple[int, tuple[int, ...]]]
    shared: list[SharedItem]
    rest: list[Item]

    @classmethod
    def read(cls, numbers: Iterator[int]) -> "Plan":
        nanoseconds, most_shared, *counts = (next(numbers) for _ in range(5))
        num_groups, num_shared, num_rest = counts

        def several() -> tuple[int, ...]:
            return tuple(next(numbers) for _ in range(next(numbers)))

        groups = [(next(numbers), several()) for _ in range(num_groups)]
        shared = [
            SharedItem(
                *(next(numbers), next(numbers), range(next(numbers), next(numbers))),
                *(next(numbers), bool(next(numbers)), several()),
            )
            for _ in range(num_shared)
        ]
        rest = [
            Item(
                *(next(numbers), next(numbers), next(numbers)),
                range(next(numbers), next(numbers)),
                *(next(numbers) for _ in range(4)),
            )
            for _ in range(num_rest)
        ]
        assert next(numbers, None) is None
        return cls(nanoseconds / 1e3, most_shared, groups, shared, rest)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel = ("attention/plan.cu", "attention/plan.h")
    directory = tmp_path_factory.mktemp("sharing_plan")
    sources = ("cuda/attention/sharing.cu",)
    return Builder(directory, "sharing_plan_driver.cpp", kernel, sources).build("plan")


def plans(planner: Path, steps: Iterable[Step]) -> list[Plan]:
    lines = "".join(step.line() + "\n" for step in steps)
    output = subprocess.run([planner], input=lines, capture_output=True, text=True, check=True)
    return [Plan.read(map(int, line.split())) for line in output.stdout.splitlines()]


def check(step: Step, plan: Plan) -> None:
    """Each partition of each sequence is computed once, what is shared from the same blocks."""
    computed: Counter[tuple[int, int, int]] = Counter()
    of_tile: dict[tuple[int, int], list[SharedItem]] = {}
    for shared in plan.shared:
        of_tile.setdefault((shared.members[0], shared.kv_head), []).append(shared)
        assert len(shared.members) * step.group <= step.shared_columns
        for member in shared.members:
            assert step.sequences[member].rows == 1
            for index in shared.partitions:
                computed[member, shared.kv_head, index] += 1
                assert step.partition(member, index) == step.partition(shared.seq, index)
                assert step.sequences[member].length > (index + 1) * PARTITION_TOKENS
    # Where the results of a member are: a slot of the first partitions, and one of each behind.
    places: dict[tuple[int, int], tuple[int, int]] = {}
    taken: set[int] = set()
    for (_, kv_head), items in of_tile.items():
        items.sort(key=lambda each: each.partitions.start)
        first, *others = items
        slots = [first.slot]
        assert first.is_prefix
        for each in others:
            assert not each.is_prefix
            slots += range(each.slot, each.slot + len(each.partitions))
        assert slots == [*range(first.slot, first.slot + len(slots))]
        assert not taken & {*slots}
        taken |= {*slots}
        for number, member in enumerate(first.members):
            row = first.slot * step.shared_columns + number * step.group
            places[member, kv_head] = (row, len(slots))
    assert len(taken) <= step.max_slots
    for item in plan.rest:
        num_shared = sum((item.seq, item.kv_head, index) in computed for index in range(1000))
        begins = item.partitions.start == num_shared
        if num_shared > 0 and begins and (item.seq, item.kv_head) in places:
            row, count = places[item.seq, item.kv_head]
            expected = (count, row + item.column, step.shared_columns)
        else:
            expected = (0, 0, 0)
        assert (item.num_shared, item.shared_row, item.shared_columns) == expected
        # Not where others have stored.
        before = -(-len(taken) * step.shared_columns // step.columns)
        assert item.slot == -1 or item.slot >= before
    for item in plan.rest:
        if item.column == 0:
            for index in item.partitions:
                computed[item.seq, item.kv_head, index] += 1
    for seq, sequence in enumerate(step.sequences):
        for kv_head in range(step.num_kv_heads):
            first = max(sequence.length - step.window, 0) if step.window else 0
            for index in range(first // PARTITION_TOKENS, -(-sequence.length // PARTITION_TOKENS)):
                assert computed.pop((seq, kv_head, index)) == 1
    assert not computed
    assert len(plan.shared) <= plan.most_shared
    # No item is longer than its launch's fair share.
    for pieces, blocks in ((plan.shared, step.shared_blocks), (plan.rest, step.blocks_at_once)):
        lengths = [len(each.partitions) for each in pieces]
        if lengths:
            assert max(lengths) <= max(1, math.ceil(sum(lengths) / blocks))


def sequences(
    rng: random.Random, num: int, prefix: tuple[int, ...], own_tokens: int, block_size: int = 16
) -> list[Sequence]:
    """Return sequences that begin with some blocks and have tokens of their own."""
    own = -(-own_tokens // block_size)
    length = len(prefix) * block_size + own_tokens
    return [
        Sequence(length, (*prefix, *(rng.randrange(1 << 30) for _ in range(own))))
        for _ in range(num)
    ]


def blocks(rng: random.Random, tokens: int, block_size: int = 16) -> tuple[int, ...]:
    return tuple(rng.randrange(1 << 30) for _ in range(tokens // block_size))


def bytes_read(step: Step, plan: Plan) -> float:
    """Return the bytes of keys, values and results of shared partitions that a layer reads."""
    own = sum(
        min(step.sequences[each.seq].length - index * PARTITION_TOKENS, PARTITION_TOKENS)
        for each in plan.rest
        for index in each.partitions
    )
    partitions = sum(len(each.partitions) for each in plan.shared) + own / PARTITION_TOKENS
    results = sum(each.num_shared * step.group * 130 * 4 for each in plan.rest)
    return partitions * step.partition_bytes + results


def test_a_system_prompt_is_read_four_times_and_not_64(planner) -> None:
    rng = random.Random(0)
    step = Step(tuple(sequences(rng, 64, blocks(rng, 2048), 256)))
    plan, apart = plans(planner, [step, replace(step, max_slots=0)])
    check(step, plan)
    check(replace(step, max_slots=0), apart)
    assert [(each, len(members)) for each, members in plan.groups] == [(4, 64)]
    before, after = bytes_read(step, apart), bytes_read(step, plan)
    print(f"{before / 1e6:.0f} MB of a layer apart, {after / 1e6:.0f} shared")
    assert (round(before / 1e6), round(after / 1e6)) == (604, 105)
    # A block of the first launch has one partition, and half of its columns, since they all run at
    # once.
    assert [len(each.partitions) for each in plan.shared] == [1] * 128
    assert {len(each.members) for each in plan.shared} == {16}
    # So four blocks read what two would.
    wide = replace(step, shared_blocks=127)
    [plan] = plans(planner, [wide])
    check(wide, plan)
    assert round(bytes_read(wide, plan) / 1e6) == 88
    assert {len(each.members) for each in plan.shared} == {32}


def test_sharing_is_found_in_little_time(planner) -> None:
    """Of the 0.5 ms that the host has for a step of 64 sequences."""
    rng = random.Random(0)
    step = Step(tuple(sequences(rng, 64, blocks(rng, 2048), 256)))
    microseconds = min(plan.microseconds for plan in plans(planner, [step] * 20))
    print(f"{microseconds:.0f} us")
    assert microseconds < 500


@pytest.mark.parametrize(
    ("num", "tokens", "shares"),
    [(4, 2048, False), (8, 2048, False), (16, 2048, True), (3, 65536, False), (8, 8192, True)],
)
def test_what_would_not_pay_is_read_apart(planner, num, tokens, shares) -> None:
    rng = random.Random(1)
    step = Step(tuple(sequences(rng, num, blocks(rng, tokens), 40)))
    [plan] = plans(planner, [step])
    check(step, plan)
    assert bool(plan.shared) == shares


def test_the_better_of_nested_groups(planner) -> None:
    rng = random.Random(2)
    system = blocks(rng, 1024)
    # Two documents behind one system prompt save more than the prompt alone.
    documents = [(*system, *blocks(rng, 4096)) for _ in range(2)]
    found = [each for prefix in documents for each in sequences(rng, 20, prefix, 30)]
    rng.shuffle(found)
    [plan] = plans(planner, [Step(tuple(found))])
    check(Step(tuple(found)), plan)
    assert sorted((each, len(members)) for each, members in plan.groups) == [(10, 20)] * 2
    # Of a sequence each the prompt is all that they share.
    apart = sequences(rng, 1, documents[0], 30) + sequences(rng, 1, documents[1], 30)
    apart += sequences(rng, 60, system, 30)
    [plan] = plans(planner, [Step(tuple(apart))])
    assert [(each, len(members)) for each, members in plan.groups] == [(2, 62)]


def test_windows_and_several_rows_are_read_apart(planner) -> None:
    rng = random.Random(3)
    step = Step(tuple(sequences(rng, 64, blocks(rng, 2048), 256)))
    drafts = tuple(replace(each, rows=2) for each in step.sequences)
    steps = [replace(step, window=2048), replace(step, sequences=drafts)]
    for plan in plans(planner, steps):
        assert not plan.groups
        assert not plan.shared
        assert not any(each.num_shared for each in plan.rest)


def test_blocks_that_differ_inside_are_seen(planner) -> None:
    """Tables may agree at the end of each partition and not before."""
    rng = random.Random(4)
    found = sequences(rng, 64, blocks(rng, 2048), 256)
    for each in range(0, 64, 2):
        changed = list(found[each].blocks)
        changed[70] = each
        found[each] = replace(found[each], blocks=tuple(changed))
    step = Step(tuple(found))
    [plan] = plans(planner, [step])
    check(step, plan)
    assert plan.groups


def random_step(rng: random.Random) -> Step:
    block_size = rng.choice((8, 16, 32, 256))
    found: list[Sequence] = []
    for _ in range(rng.randint(1, 5)):
        prefix = blocks(rng, rng.choice((256, 512, 1100, 2048, 6000)), block_size)
        for _ in range(rng.choice((1, 3, 4, 9, 40))):
            most = len(prefix) if rng.random() < 0.8 else rng.randint(0, len(prefix))
            found += sequences(rng, 1, prefix[:most], rng.randint(1, 1500), block_size)
    if rng.random() < 0.3:
        found[0] = replace(found[0], rows=min(5, found[0].length))
    rng.shuffle(found)
    return Step(
        tuple(found),
        num_kv_heads=rng.choice((1, 2, 8)),
        group=rng.choice((1, 3, 4, 7, 16, 40)),
        block_size=block_size,
        shared_columns=rng.choice((64, 128)),
        shared_blocks=rng.choice((2, 20, 132)),
        blocks_at_once=rng.choice((2, 40, 264)),
        max_slots=rng.choice((3, 60, 1008)),
    )


def test_random_steps(planner) -> None:
    rng = random.Random(5)
    steps = [random_step(rng) for _ in range(100)]
    found = plans(planner, steps)
    for step, plan in zip(steps, found, strict=True):
        check(step, plan)
        assert all(len(members) >= LEAST_SEQUENCES for _, members in plan.groups)
    shared = sum(bool(plan.shared) for plan in found)
    print(f"{shared} of {len(steps)} steps share")
    assert 20 < shared < 80
