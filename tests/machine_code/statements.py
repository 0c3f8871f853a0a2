"""What docs/gpu-code.md states of the machine code of kernels, and what is true of it."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.emu.planted_bugs import Builder
from tests.machine_code.compiled import ROOT, TENSOR_CORES, Kernel
from tests.machine_code.occupancy import MULTIPROCESSORS

PAGE = ROOT / "docs" / "gpu-code.md"
# The kernels of the table.
STATED = (
    "attention_mma_kernel<bf16, bf16, 64, 1, 3>",
    "attention_mma_kernel<bf16, bf16, 128, 1, 3>",
    "attention_mma_kernel<bf16, bf16, 128, 1, 2>",
    "attention_mma_kernel<bf16, bf16, 128, 2, 3>",
    "attention_mma_kernel<bf16, bf16, 128, 2, 2>",
    "attention_mma_kernel<bf16, bf16, 256, 1, 2>",
    "attention_mma_kernel<bf16, bf16, 256, 1, 1>",
    "attention_mma_kernel<bf16, e4m3, 128, 1, 4>",
    "attention_prompt_kernel<bf16, 64, 8, 4>",
    "attention_prompt_kernel<bf16, 128, 8, 4>",
    "attention_prompt_kernel<bf16, 128, 8, 2>",
    "attention_prompt_kernel<bf16, 128, 4, 2>",
    "warpgroup_prompt_kernel<bf16, 64>",
    "warpgroup_prompt_kernel<bf16, 128>",
    "attention_shared_kernel<bf16, 64, 8, 4>",
    "attention_shared_kernel<bf16, 128, 8, 4>",
    "attention_shared_kernel<bf16, 128, 8, 2>",
    "attention_shared_kernel<bf16, 128, 4, 2>",
    "warpgroup_shared_kernel<bf16, 64>",
    "warpgroup_shared_kernel<bf16, 128>",
    "attention_latent_kernel<bf16, 1, 2>",
    "attention_latent_kernel<bf16, 1, 4>",
    "attention_latent_kernel<bf16, 2, 2>",
    "attention_latent_kernel<bf16, 2, 3>",
    "attention_merge_kernel<bf16, 128, 8>",
    "linear_kernel<LinearShape<bf16, 64, 8, 4, 1, 6>, true, false>",
    "linear_kernel<LinearShape<bf16, 64, 64, 2, 2, 4>, true, false>",
    "linear_kernel<LinearShape<bf16, 128, 128, 2, 4, 3>, true, false>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 64, 32, 5, 3, 0, 0>, false>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 64, 64, 4, 3, 0, 0>, false>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 64, 64, 9, 1, 0, 3>, true>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 128, 64, 4, 2, 1, 0>, false>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 128, 128, 6, 1, 1, 0>, false>",
    "warpgroup_linear_kernel<WidestRowsOf256<bf16>, false>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 64, 64, 4, 2, 0, 3>, true>",
    "warpgroup_linear_kernel<WarpgroupShape<bf16, 128, 128, 5, 1, 1, 1>, true>",
    "weight_only_kernel<WeightOnlyShape<StreamedShape<bf16, 8, 8>, 8>, false>",
    "weight_only_kernel<WeightOnlyShape<StreamedShape<bf16, 8, 8>, 4>, false>",
    "weight_only_kernel<WeightOnlyShape<StreamedShape<bf16, 32, 6>, 4>, false>",
    "weight_only_kernel<WeightOnlyShape<LinearShape<bf16, 64, 64, 4, 1, 4>, 4>, false>",
    "weight_only_kernel<Float8Shape<StreamedShape<bf16, 8, 8>>, false>",
    "weight_only_kernel<Float8Shape<LinearShape<bf16, 64, 64, 4, 1, 4>>, false>",
    "warpgroup_weight_only_kernel"
    "<WeightOnlyShape<WarpgroupShape<bf16, 128, 64, 6, 2, 1, 0>, 4>, false>",
    "warpgroup_weight_only_kernel"
    "<WeightOnlyShape<WarpgroupShape<bf16, 128, 128, 8, 1, 1, 0>, 8>, false>",
    "warpgroup_weight_only_kernel"
    "<WeightOnlyShape<WarpgroupShape<bf16, 128, 128, 8, 1, 1, 0>, 4>, false>",
    "warpgroup_weight_only_kernel"
    "<WeightOnlyShape<WarpgroupShape<bf16, 128, 128, 6, 1, 1, 1>, 4>, true>",
    "warpgroup_weight_only_kernel<Float8Shape<WarpgroupShape<bf16, 128, 128, 8, 1, 1, 0>>, false>",
    "weight_only_experts_kernel<WeightOnlyShape<StreamedShape<bf16, 8, 8>, 4>>",
    "weight_only_experts_kernel<WeightOnlyShape<LinearShape<bf16, 64, 64, 4, 1, 4>, 4>>",
    "int8_linear_kernel<Int8Shape<1, 1>, bf16>",
    "int8_linear_kernel<Int8Shape<2, 8>, bf16>",
    "sample_scan_kernel",
    "sample_bins_kernel",
    "sample_select_kernel",
    "sample_draw_kernel",
    "top_logprobs_kernel",
    "peer_sum_kernel<bf16, 2>",
    "peer_sum_kernel<bf16, 8>",
)
COLUMNS = ("KB", *(f"sm_{each}" for each in MULTIPROCESSORS))


class SharedBytes:
    """Bytes of shared memory that kernels ask for when they are launched.

    Args:
        directory: for a program that is built, and asked for them.
    """

    def __init__(self, directory: Path) -> None:
        kernel = ("linear/sections.h",)
        program = Builder(directory, "shared_driver.cpp", kernel, ("core/check.cpp",)).build("all")
        output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        lines = (line.split("\t") for line in output.splitlines())
        self._of_part = {part: int(number) for part, number in lines}

    def of(self, kernel: Kernel) -> int:
        """Return a kernel's; 0 if it asks for none."""
        found = {number for part, number in self._of_part.items() if part in kernel.name}
        assert len(found) <= 1, kernel.name
        return next(iter(found), 0)


def blocks_of(kernel: Kernel, architecture: int, shared_bytes: SharedBytes) -> int:
    """Return how many blocks a multiprocessor runs at once; 0 if none fits."""
    return MULTIPROCESSORS[architecture].blocks_of(
        kernel.threads or 1, kernel.registers, kernel.shared_bytes + shared_bytes.of(kernel)
    )


def cell(kernel: Kernel, architecture: int, shared_bytes: SharedBytes) -> str:
    """Return registers, blocks of a multiprocessor, and the hot loop with its share of products.

    "none" for a kernel that is empty for the architecture.
    """
    if is_empty(kernel):
        return "none"
    blocks = blocks_of(kernel, architecture, shared_bytes)
    text = f"{kernel.registers} x {blocks or '-'}"
    if kernel.hot_loop:
        size = sum(kernel.hot_loop.values())
        products = sum(
            number
            for opcode, number in kernel.hot_loop.items()
            if opcode.partition(".")[0] in TENSOR_CORES
        )
        text += f", {size} ({products / size:.0%})"
    return text


def is_empty(kernel: Kernel) -> bool:
    """Return whether an architecture lacks the instructions that a kernel is written in."""
    return kernel.name.startswith("warpgroup_") and not kernel.hot_loop


def rows(
    compiled: Mapping[tuple[str, int], Iterable[Kernel]], shared_bytes: SharedBytes
) -> dict[str, dict[str, str]]:
    """Return the cells of each stated kernel, by the heads of the table's columns."""
    found: dict[str, dict[str, str]] = {name: {} for name in STATED}
    for (_, architecture), kernels in compiled.items():
        for kernel in kernels:
            if kernel.name in found:
                kilobytes = (kernel.shared_bytes + shared_bytes.of(kernel)) / 1024
                if not is_empty(kernel):
                    found[kernel.name]["KB"] = f"{kilobytes:.0f}"
                found[kernel.name][f"sm_{architecture}"] = cell(kernel, architecture, shared_bytes)
    return found


def table(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the lines of the page's table."""
    return [
        f"| {' | '.join(('kernel', *COLUMNS))} |",
        "|---" * (1 + len(COLUMNS)) + "|",
        *(
            f"| {' | '.join((f'`{name}`', *(cells[each] for each in COLUMNS)))} |"
            for name, cells in found.items()
        ),
    ]


def stated() -> dict[str, dict[str, str]]:
    """Return the cells of the page's table."""
    found = {}
    for line in PAGE.read_text().splitlines():
        name, *cells = line.strip("| ").split(" | ")
        if len(cells) == len(COLUMNS) and name.startswith("`"):
            found[name.strip("`")] = dict(zip(COLUMNS, cells, strict=True))
    return found
