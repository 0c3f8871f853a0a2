"""Bugs planted in the source of attention's pipeline are noticed in nvcc's PTX of it."""

from pathlib import Path

import pytest

from tests.emu.test_mutants import MUTANTS
from tests.kernels.conftest import EMULATED, forced
from tests.nvcc import find_nvcc
from tests.ptx import interpreter
from tests.ptx.cases import CASES
from tests.ptx.compile import CSRC, compile_text

# Those that compute the right thing wherever copies happen to arrive in time.
NAMES = (
    "no barrier after the wait for copies",
    "no barrier before a stage is filled again",
    "a copy into the stage that is read",
    "too few copies waited for",
)
FILES = ("mma.cuh", "mma_warp.cuh")
ONE_KERNEL = """
#include "cuda/attention/mma.cuh"
namespace quire::cuda {
template __global__ void attention_mma_kernel<bf16, bf16, 128, 1, 3>(
    const PagedAttentionParams, const AttentionItem*, PartialResults);
}
"""
CASE = CASES["attention, bfloat16, 8 columns"]


def compiled_with(folder: Path, old: str, new: str) -> str:
    """Return the PTX of one kernel in whose source `new` stands for `old`."""
    texts = {each: (CSRC / "cuda/attention" / each).read_text() for each in FILES}
    assert any(old in text for text in texts.values()), "the mutant needs another text"
    changed = folder / "cuda/attention"
    changed.mkdir(parents=True)
    for name, text in texts.items():
        (changed / name).write_text(text.replace(old, new) if old else text)
    source = folder / "one.cu"
    source.write_text(ONE_KERNEL)
    compile_text(source, "80", folder / "one.ptx", "-I", str(folder))
    return (folder / "one.ptx").read_text()


@pytest.fixture(autouse=True)
def needs_nvcc() -> None:
    """Skip where modules were compiled elsewhere."""
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")


def test_the_kernel_itself_passes(tmp_path: Path) -> None:
    for name in EMULATED:
        for _ in forced(name):
            with interpreter.replaced(compiled_with(tmp_path / name, "", "")):
                CASE.run()


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_noticed_in_every_order(tmp_path: Path, name: str) -> None:
    text = compiled_with(tmp_path, *MUTANTS[name])
    for order in EMULATED:
        for _ in forced(order):
            with interpreter.replaced(text), pytest.raises(RuntimeError, match="a race"):
                CASE.run()
