"""Plans of attention: complete, and without a block that the others wait for.

The time of a block is taken for proportional to its partitions, and blocks start in the order of
the plan, each where another has ended, as a GPU does it. No schedule ends before the fair share:
all partitions over the blocks that run at once, rounded up, since a partition is not cut.
"""

import heapq
import math
import random
import subprocess
from collections import Counter, defaultdict
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
    least_columns: int = 0  # of a sequence
    until_columns: int = UNLIMITED
    captured: tuple[int, int] | None = None  # rows and sequences of a captured launch

    @property
    def num_rows(self) -> int:
        return sum(rows for _, rows in self.sequences)

    def line(self) -> str:
        rows, sequences = self.captured or (self.num_rows, len(self.sequences))
        numbers = (
            *(self.num_kv_heads, self.group, self.columns, self.window, self.blocks_at_once),
            *(self.max_slots, self.least_columns, self.until_columns, rows, sequences),
            *(1 if self.captured is None else rows, len(self.sequences)),
            *(number for sequence in self.sequences for number in sequence),
        )
        return " ".join(map(str, numbers))

    def is_left_out(self, rows: int) -> bool:
        return not self.least_columns <= rows * self.group < self.until_columns

    def tiles(self) -> dict[tuple[int, int, int], range]:
        """Return the partitions of each sequence, kv head and first column."""
        tiles = {}
        for seq, (length, rows) in enumerate(self.sequences):
            if self.is_left_out(rows):
                continue
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
    size: tuple[int, int]  # of a captured launch of one of few sizes

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
        num_items, num_merges, num_slots, *rest = map(int, line.split())
        bounds, size, rest = rest[:2], rest[2:4], rest[4:]
        items, merges = rest[: 7 * num_items], rest[7 * num_items :]
        assert len(merges) == 5 * num_merges
        result.append(
            Plan(in_pieces(items, 7), in_pieces(merges, 5), num_slots, tuple(bounds), tuple(size))
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


# Of a mixed step the sequences of few columns and those of prompts, on an H100 with heads of 128.
MANY_COLUMNS = 64
FEW = {"until_columns": MANY_COLUMNS, "blocks_at_once": 264}
PROMPTS = {"least_columns": MANY_COLUMNS, "columns": 128, "blocks_at_once": 132}
PROMPT_SLOTS = MOST_COLUMNS // 128


def random_mixed_step(rng: random.Random, most_rows: int) -> tuple[tuple[int, int], ...]:
    """Return tokens and rows of sequences that decode, drafts, and chunks of prompts."""
    sequences, left = [], rng.randint(1, most_rows)
    longest = rng.choice((512, 4096, 65536))
    kinds = rng.choice(((1,), (1, 1, 1, 5), (1, 1, 16, 200), (15, 16, 17), (512,)))
    while left > 0:
        rows = min(rng.randint(1, rng.choice(kinds)), left)
        sequences.append((rows + rng.choice((0, rng.randint(0, longest))), rows))
        left -= rows
    rng.shuffle(sequences)
    return tuple(sequences)


def test_bounds_of_mixed_steps_hold(planner) -> None:
    rng = random.Random(3)
    steps = []
    for _ in range(400):
        rows = rng.choice((16, 64, 192, 512))
        mix = random_mixed_step(rng, rows)
        # Filled up with sequences that have no rows, or just full.
        most_seqs = max(len(mix), rng.choice((min(rows, 256), len(mix))))
        heads = {"num_kv_heads": rng.choice((1, 2, 8)), "group": rng.choice((1, 4, 7, 8, 71))}
        of_all = {**heads, "captured": (rows, most_seqs), "window": rng.choice((0, 0, 600))}
        steps += [
            Step(mix, **of_all, **FEW, columns=rng.choice((8, 16))),
            Step(mix, **of_all, **PROMPTS, max_slots=rng.choice((PROMPT_SLOTS, 0))),
            # Of heads that the kernel of prompts does not take.
            Step(mix, **of_all, columns=16),
        ]
    fullest = [0.0, 0.0]
    for step, plan in zip(steps, plans(planner, steps), strict=True):
        check(step, plan)
        counts = len(plan.items), len(plan.merges)
        for i, (count, size, bound) in enumerate(zip(counts, plan.size, plan.bounds, strict=True)):
            assert count <= size <= bound
            fullest[i] = max(fullest[i], count / max(bound, 1))
        # Blocks without work are never more than those with work, or than run at once.
        assert plan.size[0] <= max(2 * len(plan.items), step.blocks_at_once)
    print(f"items came to {fullest[0]:.2f} and merges to {fullest[1]:.2f} of their bounds")
    assert min(fullest) > 0.8


def test_mixed_steps_have_few_sizes(planner) -> None:
    """Each has a graph: most steps of a server must find one that is there already."""
    rng = random.Random(4)
    steps = []
    for _ in range(1000):
        decoding = [(rng.randint(200, 4000), 1) for _ in range(max(1, round(rng.gauss(32, 8))))]
        chunks = [min(400, max(4, round(rng.lognormvariate(4.5, 0.8)))) for _ in range(1)]
        behind = [(rows + rng.choice((0, 2000)), rows) for rows in chunks]
        mix = (*decoding, *behind)
        rows = -(-sum(rows for _, rows in mix) // 64) * 64
        steps += [Step(mix, **of_kernel, captured=(rows, rows)) for of_kernel in (FEW, PROMPTS)]
    found = plans(planner, steps)
    kinds: Counter[tuple[int, ...]] = Counter()
    for step, few, many in zip(steps[::2], found[::2], found[1::2], strict=True):
        assert step.captured is not None
        kinds[step.captured[0], *few.size, *many.size] += 1
    replayed = sum(count - 2 for count in kinds.values() if count > 2) / kinds.total()
    print(f"{len(kinds)} kinds of {kinds.total()} steps, {replayed:.2f} of them replayed")
    assert len(kinds) <= 48
    assert replayed > 0.9


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
