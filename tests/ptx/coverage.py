"""What the interpreter has run: python -m tests.ptx.coverage FOLDER.

Ends with 1 if it has not run a kernel.

FOLDER has the reports of tests.ptx.plugin; QUIRE_PTX and QUIRE_KERNELS are as they were for these.
With --table it prints what kernels do, by name.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.ptx import interpreter

# Why nothing has to run a kernel.
NO_CARD = "each card of tests/emu/device_profile.h has more bytes in flight with another depth"
NOT_RUN = {
    "empty_kernel": "it has no instruction: a worker launches it to see whether the driver can",
    "attention_mma_kernel<__nv_bfloat16, e4m3, 128, 2, 3>": NO_CARD,
    "attention_mma_kernel<__nv_bfloat16, e4m3, 256, 1, 1>": NO_CARD,
    "attention_mma_kernel<__half, e4m3, 128, 2, 3>": NO_CARD,
    "attention_mma_kernel<__half, e4m3, 256, 1, 1>": NO_CARD,
}
# The same of families, where their kernels have no instruction.
NOT_RUN_EMPTY = dict.fromkeys(
    (
        "warpgroup_linear_kernel",
        "warpgroup_weight_only_kernel",
        "warpgroup_prompt_kernel",
        "warpgroup_shared_kernel",
    ),
    "it is empty, but for compute_90a",
)

# Instructions that multiply matrices.
PRODUCTS = ("mma.", "wgmma.mma_async.")


def read_reports(folder: Path) -> dict[str, Counter[str]]:
    """Return what each kernel has done in all processes, by its mangled name."""
    total: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(folder.glob("*.json")):
        reports: dict[str, dict[str, Any]] = json.loads(path.read_text())
        for name, report in reports.items():
            operations: dict[str, int] = report.pop("instructions")
            total[name].update(report)
            total[name].update({f"op {each}": count for each, count in operations.items()})
    return total


def demangled(names: list[str]) -> list[str]:
    """Return names as C++ has them, without namespaces and parameters."""
    result = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    short = (
        re.sub(r"quire::cuda::|\(anonymous namespace\)::|^void ", "", line)
        for line in result.stdout.splitlines()
    )
    return [re.sub(r"\((quire::|\w+\)).*|\(\)$", "", each) for each in short]


def family(name: str) -> str:
    """Return the kernel's name without what its template is given."""
    return name.partition("<")[0]


def is_empty(kernel: str) -> bool:
    """Return whether a kernel only lets others start and traps, by its mangled name."""
    nothing = re.compile(r"griddepcontrol\.|(ret|trap|exit)$")
    return all(nothing.match(each.text) for each in interpreter.instructions(kernel))


def reason_not_run(kernel: str, name: str) -> str | None:
    """Return why nothing has to run a kernel; None if something has to.

    Args:
        kernel: its mangled name.
        name: the same as C++ has it.
    """
    reason = NOT_RUN.get(name)
    if reason is None and is_empty(kernel):
        reason = NOT_RUN_EMPTY.get(family(name))
    return reason


def table(total: dict[str, Counter[str]]) -> list[str]:
    """Return lines of a table in Markdown: a row for each family of kernels."""
    families: dict[str, Counter[str]] = defaultdict(Counter)
    for name, counts in zip(total, total.values(), strict=True):
        own = families[family(demangled([name])[0])]
        own.update(counts)
        own["instances"] += 1
    lines = [
        "| kernel | instances | launches | instructions of a warp, million | of them mma "
        "| wavefronts / ideal | sectors / ideal |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, counts in sorted(families.items()):
        operations = {key[3:]: count for key, count in counts.items() if key.startswith("op ")}
        performed = sum(operations.values())
        mma = sum(count for key, count in operations.items() if key.startswith(PRODUCTS))
        lines.append(
            f"| {name} | {counts['instances']} | {counts['launches']:,} | {performed / 1e6:.1f} "
            f"| {mma / max(performed, 1):.1%} "
            f"| {_ratio(counts, 'shared_wavefronts', 'shared_ideal')} "
            f"| {_ratio(counts, 'global_sectors', 'global_ideal')} |"
        )
    return lines


def _ratio(counts: Counter[str], of: str, to: str) -> str:
    return f"{counts[of] / counts[to]:.3f}" if counts[to] else "none"


def main() -> int:
    """Return 1 if a kernel has not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", action="store_true", help="print what kernels do")
    arguments = parser.parse_args()
    total = read_reports(arguments.folder)
    if arguments.table:
        print(*table(total), sep="\n")
    not_run = [each for each in interpreter.names() if each not in total]
    missing = []
    for kernel, name in sorted(zip(not_run, demangled(not_run), strict=True)):
        reason = reason_not_run(kernel, name)
        if reason is None:
            missing.append(name)
        else:
            print(f"not run: {name}: {reason}")
    for name in missing:
        print(f"error: nothing has run {name}", file=sys.stderr)
    print(f"kernels interpreted: {len(total)} of {len(total) + len(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
