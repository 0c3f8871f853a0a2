"""Kernels that live in registers compile for every architecture that is served, without spills."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("80", "89", "90a")


def find_nvcc() -> str | None:
    """The compiler, which is often installed without being on PATH."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@pytest.mark.parametrize(
    ("source", "kernel"),
    [
        ("attention/mma.cu", "attention_mma_kernel"),
        ("attention/mma_e4m3.cu", "attention_mma_kernel"),
        ("attention/prompt.cu", "attention_prompt_kernel"),
        ("linear/linear.cu", "linear_kernel"),
        ("linear/warpgroup_linear.cu", "warpgroup_linear_kernel"),
        ("linear/int8_linear.cu", "int8_linear_kernel"),
        ("linear/weight_only_linear.cu", "weight_only_kernel"),
        ("experts/weight_only_experts.cu", "weight_only_experts_kernel"),
        ("logits/sampler.cu", "sample_scan_kernel"),
        ("logits/top_logprobs.cu", "top_logprobs_kernel"),
        ("logits/logit_rules.cu", "penalty_kernel"),
    ],
)
def test_no_kernel_spills_registers(tmp_path: Path, source: str, kernel: str) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("there is no nvcc here")
    result = subprocess.run(
        [
            *(nvcc, "-std=c++17", "-O3", "-fmad=false", "-Xptxas", "-v", "--threads", "2"),
            *(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES),
            *("-I", ROOT / "csrc", "-c", ROOT / "csrc/cuda" / source),
            *("-o", tmp_path / "kernel.o"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    kernels = re.findall(
        r"Compiling entry function '(\w+)' for 'sm_(\w+)'.*?(\d+) bytes spill stores",
        result.stderr,
        re.DOTALL,
    )
    names = {name for name, _, _ in kernels}
    assert len(kernels) == len(ARCHITECTURES) * len(names) > 0
    assert any(kernel in name for name in names)
    spilling = [(name, arch, spilt) for name, arch, spilt in kernels if int(spilt) > 0]
    assert not spilling


@pytest.mark.parametrize("source", ["sampler.cu", "top_logprobs.cu"])
def test_shared_memory_adds_by_an_instruction(tmp_path: Path, source: str) -> None:
    """Of 64 bits it would add in a loop, which threads that meet run through one by one."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("there is no nvcc here")
    ptx = tmp_path / "kernel.ptx"
    options = ("-std=c++17", "-O3", "-ptx", "-arch=compute_80", "-I", ROOT / "csrc", "-o", ptx)
    subprocess.run([nvcc, *options, ROOT / "csrc/cuda/logits" / source], check=True)
    atomics = set(re.findall(r"\b(?:atom|red)\.[\w.]+", ptx.read_text()))
    assert "atom.shared.add.u32" in atomics
    assert {each.partition(".")[2].split(".", 1)[1] for each in atomics} == {"add.u32"}
