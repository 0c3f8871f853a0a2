"""Each barrier, wait and fence of the main kernels is left out in turn, and each is missed.

An instruction is taken out of the PTX, the kernel is run by the calls of `cases`, and the
interpreter ends it, or a result is wrong. What no call misses is named here with the reason.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernels.conftest import EMULATED, forced
from tests.ptx import interpreter
from tests.ptx.cases import (
    CASES,
    PROMPTS_ON_WARPGROUPS,
    SHARING_ON_WARPGROUPS,
    WARPGROUPS,
    WEIGHT_ONLY_WARPGROUPS,
    Case,
)
from tests.ptx.interpreter import Instruction
from worker_svc.ops import compiled

CSRC = Path(__file__).resolve().parents[2] / "csrc"
ORDERS = (
    "bar.sync|bar.warp.sync|cp.async.commit_group|cp.async.wait_group|membar.gl|griddepcontrol.wait"
    "|fence.proxy.async|wgmma.fence|wgmma.commit_group|wgmma.wait_group"
)
ON_WARPGROUPS = (
    *(WARPGROUPS, WEIGHT_ONLY_WARPGROUPS),
    *(PROMPTS_ON_WARPGROUPS, SHARING_ON_WARPGROUPS),
)

# Lines of the source, and why their instruction may be left out.
REDUNDANT = {
    **dict.fromkeys(
        (
            "void drain() { ptx::async_wait<0>(); }",
            "ptx::async_wait<0>();\n  if (!merges) return;",
            "ptx::async_wait<0>();\n  if (merges) finish(columns);",
        ),
        "behind the loop no copies are left in the last groups: it guards a later change of that",
    ),
    "a sum before this one has been read": "only the second sum of a kernel needs it",
    "an earlier result has been read": "of two results some other barrier lies between",
    "__syncthreads();\n    amounts.clear();": "the barrier that ends the round is before it, too",
    "__syncthreads();\n  ties[threadIdx.x] = own;": "barriers of the prefix are before it, too",
}
# The same, of some kernels only.
REDUNDANT_IN = {
    "for what is left without atomics": ("sample_bins_kernel",),  # bins are left by atomics alone
    # The largest logit and the winner are left by one thread.
    "for what other threads have left": ("sample_scan_kernel", "sample_draw_kernel"),
}
# Needed, and not missed here, where atomics of one block are never late for another: of some
# kernels, whose blocks leave nothing but atomics.
UNSEEN_IN = {
    "for what other threads have left": ("sample_bins_kernel",),
    "for what other blocks have left": ("sample_bins_kernel",),
}
# Rows that cannot be copied 16 bytes at a time are stored: groups of copies are empty.
NO_COPIES = {"linear, unaligned": ("cp.async.commit_group", "cp.async.wait_group")}
# All flags are set before one is awaited. Without it some are set later: the results are the same.
UNSEEN = {"sum over ranks": ("bar.warp.sync",)}
# Instructions that the calls of a case do not reach, by lines of the source.
NOT_REACHED = {
    "linear, 128 rows": "sections are never shared in tiles of this size",
    "warpgroups, 64 rows": "sections are never shared in tiles of this shape",
    "warpgroups, 64 rows of one block": "sections are never shared in tiles of this shape",
    "warpgroups, 64 rows and 128 features": "sections are never shared in tiles of this shape",
    "warpgroups, 128 rows": "sections are never shared in tiles of this shape",
    "warpgroups, 256 rows": "sections are never shared in tiles of this shape",
    "warpgroups, 256 rows of float16": "sections are never shared in tiles of this shape",
    "warpgroups, 64 rows of several parts": "nor has a block several tiles of so few",
    "warpgroups, 128 rows of several parts": "nor has a block several tiles of so few",
    "weights of 8 bits on warpgroups, 128 rows": "sections are never shared in tiles of this shape",
    "weights of float8 on warpgroups, 128 rows of several parts": "nor has a block several tiles",
    "linear, unaligned": "the next lines of its shapes are those of the aligned ones",
}


def synchronising(kernel: str) -> list[Instruction]:
    """Return a kernel's instructions that order threads or copies."""
    return [each for each in interpreter.instructions(kernel) if re.match(ORDERS, each.text)]


def source_lines(instruction: Instruction) -> str:
    """Return the line of an instruction and the next."""
    path, number = instruction.source.rsplit(":", 1)
    found = [each for each in CSRC.rglob(Path(path).name) if str(each).endswith(path)]
    if not found:
        return ""  # of a header of CUDA's
    lines = found[0].read_text().splitlines()
    return "\n".join(lines[int(number) - 1 : int(number) + 1])


def begins_with(lines: str, text: str) -> bool:
    """Return whether a text begins on the first line: an instruction's own, not a neighbour's."""
    return 0 <= lines.find(text) < len(lines.partition("\n")[0])


def is_missed(case: Case, kernel: str, instruction: Instruction) -> bool:
    """Return whether something goes wrong without an instruction, in any order of turns."""
    for name in EMULATED:
        for _ in forced(name):
            with interpreter.without(kernel, instruction.number):
                try:
                    case.run()
                except (RuntimeError, AssertionError):
                    return True
    return False


def is_known(name: str, kernel: str, instruction: Instruction) -> bool:
    """Return whether an instruction is known to be redundant."""
    unseen: Sequence[str] = NO_COPIES.get(name, ()) + UNSEEN.get(name, ())
    if any(instruction.text.startswith(each) for each in unseen):
        return True
    lines = source_lines(instruction)
    if any(begins_with(lines, each) for each in REDUNDANT):
        return True
    return any(
        begins_with(lines, line) and any(each in kernel for each in kernels)
        for table in (REDUNDANT_IN, UNSEEN_IN)
        for line, kernels in table.items()
    )


@pytest.mark.parametrize("name", CASES)
def test_every_barrier_is_missed(name: str) -> None:
    case = CASES[name]
    if case.kernel.startswith(ON_WARPGROUPS) and not interpreter.has_warpgroups():
        pytest.skip("kernels of warpgroups are empty but for compute_90a")
    candidates = interpreter.kernels(case.kernel)
    before = {each: synchronising(each) for each in candidates}
    for _ in forced(EMULATED[0]):
        case.run()
    num_tried, unnoticed = 0, []
    for kernel in candidates:
        reached = [
            after
            for old, after in zip(before[kernel], synchronising(kernel), strict=True)
            if after.performed > old.performed
        ]
        if not reached:
            continue  # another instance
        if name not in NOT_REACHED:
            assert len(reached) == len(before[kernel]), (kernel, reached)
        for instruction in reached:
            num_tried += 1
            if not is_missed(case, kernel, instruction) and not is_known(name, kernel, instruction):
                unnoticed.append((kernel, instruction))
    assert num_tried > 0
    assert not unnoticed
    assert compiled._C.__file__
