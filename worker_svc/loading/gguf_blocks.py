"""The types of GGUF's tensors that are served: blocks of integers with scales of their own.

docs/numerics.md defines what they stand for; one rounding at most, so no order could change a bit.

Source: github.com/ggml-org/ggml, ggml-common.h (layouts) and ggml-quants.c (what they mean).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

# Of elements that are read at once: what lies between bytes and numbers stays in the cache.
_CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a tensor is stored.

    Attributes:
        name: as llama.cpp writes it.
        elements: of a block.
        num_bytes: of a block.
        read: from blocks [n, num_bytes] uint8 to [n, elements] float32.
    """

    name: str
    elements: int
    num_bytes: int
    read: Callable[[torch.Tensor], torch.Tensor]

    def row_bytes(self, in_features: int) -> int:
        """Return the bytes of a row of whole blocks."""
        return in_features // self.elements * self.num_bytes

    def dequantised(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [N, K] float32 of rows [N, bytes] uint8."""
        num_rows, row_bytes = rows.shape
        in_features = row_bytes // self.num_bytes * self.elements
        result = torch.empty((num_rows, in_features), dtype=torch.float32)
        step = max(1, _CHUNK_ELEMENTS // max(1, in_features))
        for begin in range(0, num_rows, step):
            blocks = rows[begin : begin + step].reshape(-1, self.num_bytes)
            result[begin : begin + step] = self.read(blocks).view(-1, in_features)
        return result


def _plain(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda blocks: blocks.view(dtype).float()


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return [n, 1] float32 of the float16 at a byte of each block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: torch.Tensor) -> torch.Tensor:
    """Return the lower four bits of all bytes [..., m], then the upper ones: [..., 2m]."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    low, middle, high = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    # Six bits for each group of 32: four groups in place, four with their upper bits elsewhere.
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), dim=1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), dim=1)
    integers = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32).float()
    scaled = integers * (_half(blocks, 0) * scales.float()).unsqueeze(-1)
    return (scaled - (_half(blocks, 2) * minima.float()).unsqueeze(-1)).flatten(1)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    lower = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    upper = pairs >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1) & 3
    integers = (lower | (upper << 4)).view(-1, 16, 16).float() - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return (integers * scales.unsqueeze(-1)).flatten(1)


# By the number of ggml_type.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4, _plain(torch.float32)),
    1: BlockType("F16", 1, 2, _plain(torch.float16)),
    30: BlockType("BF16", 1, 2, _plain(torch.bfloat16)),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
}
# Names of others that files in use hold, for errors.
_OTHERS = {
    6: "Q5_0",
    7: "Q5_1",
    10: "Q2_K",
    11: "Q3_K",
    13: "Q5_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    39: "MXFP4",
}


def type_name(type_id: int) -> str:
    """Return the name of a type that is not served."""
    return _OTHERS.get(type_id, f"type {type_id}")
