"""Blocks of GGUF's types are to the bit what the package gguf and numerics.md take them for."""

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.gguf_files import Type
from worker_svc.loading.gguf_blocks import dequantised
from worker_svc.loading.gguf_types import BLOCK_TYPES

SIZES = gguf.GGML_QUANT_SIZES
DEFINED = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
FLOAT4 = [sign * value for sign in (1, -1) for value in (0, 1, 2, 3, 4, 6, 8, 12)]


def can_read(kind: Type) -> bool:
    """Whether the package knows what blocks of a type stand for."""
    try:
        gguf.quants.dequantize(np.zeros((1, SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def slowly(kind: str, block: bytes) -> list[float]:
    """By the definition in docs/numerics.md, element by element, in float64 and rounded once."""

    def half(at: int) -> float:
        return float(np.frombuffer(block[at : at + 2], np.float16)[0])

    def signed(at: int) -> int:
        return block[at] - 256 * (block[at] > 127)

    values = []
    for k in range(BLOCK_TYPES[Type[kind].value].elements):
        match kind:
            case "Q8_0":
                value = half(0) * signed(2 + k)
            case "Q4_0":
                value = half(0) * ((block[2 + k % 16] >> 4 * (k // 16) & 15) - 8)
            case "Q4_1":
                value = half(0) * (block[4 + k % 16] >> 4 * (k // 16) & 15) + half(2)
            case "Q5_0" | "Q5_1":
                at = 2 if kind == "Q5_0" else 4
                q = block[at + 4 + k % 16] >> 4 * (k // 16) & 15
                q += (block[at + k // 8] >> k % 8 & 1) * 16
                value = half(0) * (q - 16) if kind == "Q5_0" else half(0) * q + half(2)
            case "Q2_K":
                g = k // 16
                q = block[16 + 32 * (k // 128) + k % 32] >> 2 * (k % 128 // 32) & 3
                value = half(80) * (block[g] & 15) * q - half(82) * (block[g] >> 4)
            case "Q3_K":
                g = k // 16
                scale = block[96 + g % 8] >> 4 * (g // 8) & 15
                scale += (block[104 + g % 4] >> 2 * (g // 4) & 3) * 16
                q = block[32 + 32 * (k // 128) + k % 32] >> 2 * (k % 128 // 32) & 3
                q += (block[k % 32] >> k // 32 & 1) * 4
                value = half(108) * (scale - 32) * (q - 4)
            case "TQ1_0":
                begin, width = (0, 32) if k < 160 else (32, 16) if k < 240 else (48, 4)
                at = k - 5 * begin
                value = half(52) * (
                    (block[begin + at % width] * 3 ** (at // width) % 256 * 3) // 256 - 1
                )
            case "TQ2_0":
                q = block[32 * (k // 128) + k % 32] >> 2 * (k % 128 // 32) & 3
                value = half(64) * (q - 1)
            case "MXFP4":
                value = 2.0 ** (block[0] - 128) * FLOAT4[block[1 + k % 16] >> 4 * (k // 16) & 15]
            case "NVFP4":
                g, at = k // 16, k % 16
                e, m = block[g] >> 3 & 15, block[g] & 7
                scale = (8 + m if e else m) * 2.0 ** (max(e, 1) - 11) if block[g] != 127 else 0
                value = scale * FLOAT4[block[4 + 8 * g + at % 8] >> 4 * (at // 8) & 15]
            case "Q4_K" | "Q5_K":
                g, packed = k // 32, block[4:16]
                if g < 4:
                    scale, minimum = packed[g] % 64, packed[g + 4] % 64
                else:
                    scale = packed[g + 4] % 16 + packed[g - 4] // 64 * 16
                    minimum = packed[g + 4] // 16 + packed[g] // 64 * 16
                at = 16 if kind == "Q4_K" else 48
                q = block[at + 32 * (g // 2) + k % 32] >> 4 * (g % 2) & 15
                if kind == "Q5_K":
                    q += (block[16 + k % 32] >> g & 1) * 16
                value = half(0) * scale * q - half(2) * minimum
            case "Q6_K":
                h, quarter, at = k // 128, k % 128 // 32, k % 32
                q = block[64 * h + 32 * (quarter % 2) + at] >> 4 * (quarter // 2) & 15
                q += (block[128 + 32 * h + at] >> 2 * quarter & 3) * 16
                value = half(208) * signed(192 + k // 16) * (q - 32)
            case _:
                raise AssertionError(kind)
        values.append(value)
    with np.errstate(over="ignore"):
        return [float(np.float32(value)) for value in values]


def made_up(kind: Type, rows: int) -> NDArray[np.uint8]:
    """Rows of three blocks of random bytes, of as many values."""
    return np.random.default_rng(1).integers(0, 256, (rows, 3 * SIZES[kind][1]), np.uint8)


def test_types_are_all_that_gguf_reads() -> None:
    theirs = {each for each in Type if can_read(each)}
    assert len(theirs) == 24 + len(("F32", "F16"))
    ours = {Type(number) for number in BLOCK_TYPES}
    assert ours == theirs | {Type.F64, Type.I8, Type.I16, Type.I32, Type.I64}
    for kind in ours:
        form = BLOCK_TYPES[kind.value]
        assert (form.name, form.elements, form.num_bytes) == (kind.name, *SIZES[kind])
        assert form.has_grid == kind.name.startswith("IQ")


@pytest.mark.parametrize("kind", [each for each in Type if can_read(each)], ids=str)
def test_blocks_are_to_the_bit_what_gguf_takes_them_for(kind: Type) -> None:
    rows = made_up(kind, 700)
    found = dequantised(BLOCK_TYPES[kind.value], torch.from_numpy(rows)).numpy()
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be infinite
        theirs = np.ascontiguousarray(gguf.quants.dequantize(rows, kind))
    numbers = ~np.isnan(theirs)
    assert numbers.mean() > 0.9
    assert np.array_equal(numbers, ~np.isnan(found))
    assert np.array_equal(found.view(np.uint32)[numbers], theirs.view(np.uint32)[numbers])


@pytest.mark.parametrize("kind", DEFINED)
def test_blocks_are_what_numerics_md_takes_them_for(kind: str) -> None:
    form = BLOCK_TYPES[Type[kind].value]
    rows = made_up(Type[kind], 8)
    found = dequantised(form, torch.from_numpy(rows)).numpy()
    for row, values in zip(rows, found, strict=True):
        blocks = row.reshape(3, -1)
        ours = [value for block in blocks for value in slowly(kind, block.tobytes())]
        assert np.array_equal(values, np.float32(ours), equal_nan=True)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "float64"])
def test_numbers_are_rounded_once(name: str) -> None:
    values = np.random.default_rng(4).integers(-(2**62), 2**62, 64).astype(name)
    form = next(
        each
        for each in BLOCK_TYPES.values()
        if each.name == name[0].upper() + name.lstrip("intfloa")
    )
    found = dequantised(form, torch.from_numpy(values.view(np.uint8).reshape(2, -1)))
    assert np.array_equal(found.numpy().ravel(), values.astype(np.float32))
