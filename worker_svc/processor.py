"""What the processor has that no kernel uses, and which quantisation is fast on it."""

import time
from pathlib import Path
from statistics import median

import torch

from worker_svc.layers.device_linear import make_linear
from worker_svc.layers.quantization import quantization

CPUINFO = Path("/proc/cpuinfo")
# Flags of Linux, by what they stand for.
_UNUSED = {
    "AMX for bfloat16": "amx_bf16",
    "AMX for int8": "amx_int8",
    "AVX-512 for float16": "avx512_fp16",
    "AVX10": "avx10",
}
METHODS = ("none", "w8a8", "w8", "w4")
ROWS = {"decoding": 1, "prompts": 128}
"""Rows of a step of one sequence that decodes, and of a short prompt."""

# A matrix that no cache of a core holds, as those of models do not fit either.
_FEATURES = 4096
_OUT_FEATURES = 2048
_REPEATS = 7


def unused_extensions(cpuinfo: Path = CPUINFO) -> list[str]:
    """Return what the processor could multiply matrices with and no kernel here does."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return [what for what, flag in _UNUSED.items() if flag in flags]


def linear_speeds() -> dict[str, dict[str, float]]:
    """Return how many times as fast as "none" each method is, by kind of step; 2 s at most."""
    weight = torch.randn(_OUT_FEATURES, _FEATURES, dtype=torch.bfloat16)
    seconds: dict[str, dict[str, float]] = {}
    for method in METHODS:
        with quantization(method):
            linear = make_linear(weight, None, is_shared=True)
        seconds[method] = {
            kind: _seconds(linear, torch.randn(rows, _FEATURES, dtype=torch.bfloat16))
            for kind, rows in ROWS.items()
        }
    plain = seconds["none"]
    return {
        kind: {method: plain[kind] / seconds[method][kind] for method in METHODS} for kind in ROWS
    }


def _seconds(linear: object, x: torch.Tensor) -> float:
    assert callable(linear)
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        linear(x)
        taken.append(time.perf_counter() - began)
    return median(taken)
