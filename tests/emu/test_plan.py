"""Plans of attention: complete, and without a block that the others wait for.

The time of a block is taken for proportional to its partitions, and blocks start in the order of
the plan, each where another has ended, as a GPU does it. No schedule ends before the fair share:
all partitions over the blocks that run at once, rounded up, since a partition is not cut.
"""

import heapq
import math
import random
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.emu.planted_bugs import Builder

PARTITION_TOKENS = 512
UNLIMITED = 1 << 30
# Columns of partitions in the 256 MiB of PartialMemory, at heads of 128.
MOST_COLUMNS = (256 << 20) // (130 * 4)
# Of an A100, an H100 with PCIe, an H100 and a B200; each runs one or two blocks of the kernel.
MULTIPROCESSORS = (108, 114, 132, 148)


@dataclass(frozen=True)
class Step:
    """What is planned: tokens and rows of each sequence, and the shape of the launch."""

    sequences: tuple[tuple[int, int], ...]
    num_kv_heads: int = 8
    group: int = 4
    columns: int = 8
    window: int = 0
    blocks_at_once: int = 264
    max_slots: int = UNLIMITED

    def line(self) -> str:
        numbers = (
            *(self.num_kv_heads, self.group, self.columns, self.window, self.blocks_at_once),
            *(self.max_slots, len(self.sequences)),
            *(number for sequence in self.sequences for number in sequence),
        )
        return " ".join(map(str, numbers))

    def tiles(self) -> dict[tuple[int, int, int], range]:
        """Return the partitions of each sequence, kv head and first column."""
        tiles = {}
        for seq, (length, rows) in enumerate(self.sequences):
            for column in range(0, rows * self.group, self.columns):
                first_row = column // self.group
                last_row = (min(column + self.columns, rows * self.group) - 1) // self.group
                end = length - rows + last_row + 1
                begin = max(length - rows + first_row + 1 - self.window, 0) if self.window else 0
                partitions = range(begin // PARTITION_TOKENS, -(-end // PARTITION_TOKENS))
                for head in range(self.num_kv_heads):
                    tiles[seq, head, column] = partitions
        return tiles

    def fair_share(self) -> int:
        return max(1, math.ceil(sum(map(len, self.tiles().values())) / self.blocks_at_once))


@dataclass(frozen=True)
class Plan:
    items: Sequence[tuple[int, ...]]
    merges: Sequence[tuple[int, ...]]
    num_slots: int
    bounds: tuple[int, int]

    def lengths(self) -> list[int]:
        return [end - begin for *_, begin, end, _, _ in self.items]

    def makespan(self, blocks_at_once: int) -> int:
        """Return when the last block ends."""
        ends = [0] * blocks_at_once
        for length in self.lengths():
            heapq.heapreplace(ends, ends[0] + length)
        return max(ends)


def in_pieces(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(numbers[i : i + size]) for i in range(0, len(numbers), size)]


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel = ("attention/plan.cu", "attention/plan.h")
    return Builder(tmp_path_factory.mktemp("plan"), "plan_driver.cpp", kernel, ()).build("plan")


def plans(planner: Path, steps: Iterable[Step]) -> list[Plan]:
    lines = "".join(step.line() + "\n" for step in steps)
    output = subprocess.run([planner], input=lines, capture_output=True, text=True, check=True)
    result = []
    for line in output.stdout.splitlines():
        num_items, num_merges, num_slots, most_items, most_merges, *rest = map(int, line.split())
        items, merges = rest[: 7 * num_items], rest[7 * num_items :]
        assert len(merges) == 5 * num_merges
        result.append(
            Plan(in_pieces(items, 7), in_pieces(merges, 5), num_slots, (most_items, most_merges))
        )
    return result


def check(step: Step, plan: Plan) -> None:
    """Each partition of each tile is computed once, and merged where several blocks did it."""
    tiles = step.tiles()
    pieces = defaultdict(list)
    for seq, head, column, begin, end, slot, is_prefix in plan.items:
        assert begin < end
        pieces[seq, head, column].append((begin, end, slot, is_prefix))
    assert pieces.keys() == tiles.keys()
    merges = {(seq, head, column): rest for seq, head, column, *rest in plan.merges}
    assert len(merges) == len(plan.merges)
    next_slot = 0
    for tile, parts in pieces.items():
        parts.sort()
        begins, ends, slots, prefixes = zip(*parts, strict=True)
        assert begins == (tiles[tile].start, *ends[:-1])
        assert ends[-1] == tiles[tile].stop
        if len(parts) == 1:
            assert (*slots, *prefixes) == (-1, 0)
            assert tile not in merges
        else:
            # The first piece has one slot, each partition behind it another.
            first, count = merges.pop(tile)
            assert count == 1 + ends[-1] - ends[0]
            assert slots == (first, *(first + 1 + begin - ends[0] for begin in begins[1:]))
            assert prefixes == (1, *(0 for _ in parts[1:]))
            next_slot += count
    assert not merges
    taken = sorted((first, first + count) for *_, first, count in plan.merges)
    assert all(a[1] == b[0] for a, b in pairwise(taken))
    assert plan.num_slots == next_slot <= step.max_slots


# Tokens of sequences that decode; what the first names is the longest, beside many short ones.
NAMED = {
    "one long": Step(((131072, 1),)),
    "1 x 128k + 63 x 1k": Step(((131072, 1), *[(1024, 1)] * 63)),
    "1 x 32k + 63 x 2k": Step(((32768, 1), *[(2048, 1)] * 63)),
    "4 x 32k + 60 x 512": Step((*[(32768, 1)] * 4, *[(512, 1)] * 60)),
    "1 x 128k + 299 x 2k, one kv head": Step(((131072, 1), *[(2048, 1)] * 299), num_kv_heads=1),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
def test_no_block_has_more_than_the_fair_share(planner, name, multiprocessors) -> None:
    step = replace(NAMED[name], blocks_at_once=2 * multiprocessors)
    plan = plans(planner, [step])[0]
    check(step, plan)
    assert max(plan.lengths()) <= step.fair_share()
    assert plan.makespan(step.blocks_at_once) <= 1.125 * step.fair_share()


def random_step(rng: random.Random) -> Step:
    longest = rng.choice((1024, 4096, 32768, 131072))
    kind = rng.choice(("equal", "uniform", "logarithmic", "skewed"))

    def tokens() -> int:
        if kind == "equal":
            return longest
        if kind == "uniform":
            return rng.randint(1, longest)
        if kind == "logarithmic":
            return int(math.exp(rng.uniform(0, math.log(longest))))
        return longest if rng.random() < 0.05 else 500

    chunk = rng.choice((0, 0, 0, 300, 2048))
    lengths = [tokens() for _ in range(rng.choice((1, 4, 16, 64, 128, 256)))]
    rows = [1] * len(lengths)
    if chunk:
        rows[0] = min(chunk, lengths[0])
    return Step(
        tuple(zip(lengths, rows, strict=True)),
        num_kv_heads=rng.choice((1, 2, 4, 8)),
        group=rng.choice((1, 4, 8)),
        columns=16 if chunk else 8,
        window=rng.choice((0, 0, 0, 4096)),
        blocks_at_once=rng.choice(MULTIPROCESSORS) * rng.choice((1, 2)),
    )


def test_random_steps(planner) -> None:
    rng = random.Random(1)
    steps = [random_step(rng) for _ in range(1000)]
    worst = 0.0
    for step, plan in zip(steps, plans(planner, steps), strict=True):
        check(step, plan)
        assert max(plan.lengths()) <= step.fair_share(), step
        worst = max(worst, plan.makespan(step.blocks_at_once) / step.fair_share())
    print(f"the last block ended at up to {worst:.3f} times the fair share")
    assert worst <= 1.125


def test_bounds_of_captured_launches_hold(planner) -> None:
    rng = random.Random(2)
    steps = [
        replace(step, sequences=tuple((length, 1) for length, _ in step.sequences), columns=8)
        for step in (random_step(rng) for _ in range(300))
    ]
    for plan in plans(planner, steps):
        assert len(plan.items) <= plan.bounds[0]
        assert len(plan.merges) <= plan.bounds[1]


@pytest.mark.parametrize("tokens", [65536, 131072])
@pytest.mark.parametrize("num_kv_heads", [1, 8])
def test_long_chunks_have_room(planner, tokens, num_kv_heads) -> None:
    steps = [
        Step(((tokens, rows),), num_kv_heads, 4, 16, 0, 2 * multiprocessors, MOST_COLUMNS // 16)
        for rows in (2, 16, 32, 100, 128, 512, 2048, 8192)
        for multiprocessors in MULTIPROCESSORS
    ]
    for step, plan in zip(steps, plans(planner, steps), strict=True):
        check(step, plan)
        assert plan.makespan(step.blocks_at_once) <= 1.125 * step.fair_share(), step


def test_what_finds_no_slots_stays_whole(planner) -> None:
    step = NAMED["4 x 32k + 60 x 512"]
    needed = plans(planner, [step])[0].num_slots
    steps = [replace(step, max_slots=most) for most in (0, needed // 2, needed)]
    few, some, all_of_them = plans(planner, steps)
    for limited, plan in zip(steps, (few, some, all_of_them), strict=True):
        check(limited, plan)
    assert not few.merges
    assert 0 < len(some.merges) < len(all_of_them.merges)


def test_equal_work_that_fits_is_not_cut(planner) -> None:
    step = Step(((4096, 1),) * 33)  # one tile for each block
    plan = plans(planner, [step])[0]
    assert not plan.merges
    assert plan.makespan(step.blocks_at_once) == step.fair_share() == 8
