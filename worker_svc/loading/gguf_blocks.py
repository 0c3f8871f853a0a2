"""The types of GGUF's tensors that are served: blocks of numbers with scales of their own.

docs/numerics.md defines what they stand for; one rounding at most, so no order could change a bit.

Source: github.com/ggml-org/ggml, ggml-common.h (layouts) and ggml-quants.c (what they mean).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.loading import gguf_grids as grids
from worker_svc.loading import gguf_integers as integers

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
        has_grid: whether that needs quire-serve[gguf].
    """

    name: str
    elements: int
    num_bytes: int
    read: Callable[[torch.Tensor], torch.Tensor]
    has_grid: bool = False

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


# By the number of ggml_type.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4, _plain(torch.float32)),
    1: BlockType("F16", 1, 2, _plain(torch.float16)),
    30: BlockType("BF16", 1, 2, _plain(torch.bfloat16)),
    28: BlockType("F64", 1, 8, _plain(torch.float64)),
    24: BlockType("I8", 1, 1, _plain(torch.int8)),
    25: BlockType("I16", 1, 2, _plain(torch.int16)),
    26: BlockType("I32", 1, 4, _plain(torch.int32)),
    27: BlockType("I64", 1, 8, _plain(torch.int64)),
    2: BlockType("Q4_0", 32, 18, integers.q4_0),
    3: BlockType("Q4_1", 32, 20, integers.q4_1),
    6: BlockType("Q5_0", 32, 22, integers.q5_0),
    7: BlockType("Q5_1", 32, 24, integers.q5_1),
    8: BlockType("Q8_0", 32, 34, integers.q8_0),
    10: BlockType("Q2_K", 256, 84, integers.q2_k),
    11: BlockType("Q3_K", 256, 110, integers.q3_k),
    12: BlockType("Q4_K", 256, 144, integers.q4_k),
    13: BlockType("Q5_K", 256, 176, integers.q5_k),
    14: BlockType("Q6_K", 256, 210, integers.q6_k),
    34: BlockType("TQ1_0", 256, 54, integers.tq1_0),
    35: BlockType("TQ2_0", 256, 66, integers.tq2_0),
    39: BlockType("MXFP4", 32, 17, integers.mxfp4),
    40: BlockType("NVFP4", 64, 36, integers.nvfp4),
    16: BlockType("IQ2_XXS", 256, 66, grids.iq2_xxs, True),
    17: BlockType("IQ2_XS", 256, 74, grids.iq2_xs, True),
    22: BlockType("IQ2_S", 256, 82, grids.iq2_s, True),
    18: BlockType("IQ3_XXS", 256, 98, grids.iq3_xxs, True),
    21: BlockType("IQ3_S", 256, 110, grids.iq3_s, True),
    19: BlockType("IQ1_S", 256, 50, grids.iq1_s, True),
    29: BlockType("IQ1_M", 256, 56, grids.iq1_m, True),
    20: BlockType("IQ4_NL", 32, 18, grids.iq4_nl, True),
    23: BlockType("IQ4_XS", 256, 136, grids.iq4_xs, True),
}
# Names of others, for errors: of sums beside quants, of what files held once, and of late ones.
_OTHERS = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    41: "Q1_0",
}


def type_name(type_id: int) -> str:
    """Return the name of a type that is not served."""
    return _OTHERS.get(type_id, f"type {type_id}")
