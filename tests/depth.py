"""How much of the tests runs: a cover of cases in `make test`, the others in `make test-deep`.

QUIRE_TEST_DEPTH chooses: `test` (if it is not set), `deep` (what `test` leaves out), or `all`.
Every run prints how much of what it ran, in lines that begin with "cases:".

Markers:
    pairwise: of a parametrized test, `test` runs cases in which every two values of two parameters
        meet, for each instruction set; `deep` runs the others.
    deep: runs in `deep` alone.
    budget: draws more cases in `deep` than in `test`; runs in both.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest

DEPTHS = ("test", "deep", "all")
DEPTH = os.environ.get("QUIRE_TEST_DEPTH", "test")
if DEPTH not in DEPTHS:
    raise pytest.UsageError(f"QUIRE_TEST_DEPTH: must be one of {DEPTHS}, got {DEPTH!r}")

# Cases of each instruction set get a cover of their own: a machine may lack some of the sets.
ISA_PARAMETERS = ("isa", "cpu_isa", "cuda_isa")

_budgets: list[str] = []
_counts = {"selected": 0, "left out": 0}


def budget(what: str, *, test: int, deep: int) -> int:
    """Return how much of something a test draws at this depth; the summary of the run shows it.

    The test needs the marker `budget`.
    """
    chosen = test if DEPTH == "test" else deep
    _budgets.append(f"cases: {what}: {chosen:,} (make test {test:,}, make test-deep {deep:,})")
    return chosen


def select(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items of this depth, and those of another."""
    deep = {item for item in items if item.get_closest_marker("deep")}
    deep |= _beyond_pairs(items)
    if DEPTH == "all":
        chosen = set(items)
    elif DEPTH == "test":
        chosen = set(items) - deep
    else:
        chosen = deep | {item for item in items if item.get_closest_marker("budget")}
    kept = [item for item in items if item in chosen]
    _counts["selected"] += len(kept)
    _counts["left out"] += len(items) - len(kept)
    return kept, [item for item in items if item not in chosen]


def summary() -> list[str]:
    """Return the lines that show how much of what runs at this depth."""
    total = sum(_counts.values())
    others = {"test": "make test-deep has the others", "deep": "make test has the others"}
    first = f"cases: {_counts['selected']:,} of {total:,} at depth {DEPTH!r}"
    if DEPTH in others and _counts["left out"]:
        first += f"; {others[DEPTH]}"
    return [first, *_budgets]


def _beyond_pairs(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of `pairwise` tests that a cover of all pairs does without."""
    groups: dict[Hashable, list[tuple[pytest.Item, dict[str, str]]]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("pairwise"):
            continue
        values = _values_of(item)
        isa = tuple(values.pop(name, "") for name in ISA_PARAMETERS)
        groups[item.nodeid.partition("[")[0], isa].append((item, values))
    beyond = set()
    for cases in groups.values():
        kept = pairwise([values for _, values in cases])
        beyond |= {item for position, (item, _) in enumerate(cases) if position not in kept}
    return beyond


def _values_of(item: pytest.Item) -> dict[str, str]:
    """Return what distinguishes each parameter's values, those without a name by their place."""
    callspec = item.callspec  # type: ignore[attr-defined]
    return {
        name: str(value) if isinstance(value, str | int | float) else f"#{callspec.indices[name]}"
        for name, value in callspec.params.items()
    }


def pairwise(cases: Sequence[dict[str, str]]) -> set[int]:
    """Return positions of cases in which every pair of values of two parameters occurs.

    Greedy: the first of the cases with most pairs that no chosen case has.
    """
    pairs = [set(itertools.combinations(sorted(case.items()), 2)) for case in cases]
    if all(len(case) < 2 for case in cases):
        return set(range(len(cases)))
    missing = set().union(*pairs)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda position: len(pairs[position] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen
