"""The types of GGUF's tensors that are served: how many bytes hold how many elements.

Apart from what reads them, since a file is checked before torch is loaded.

Source: github.com/ggml-org/ggml, ggml-common.h.
"""

import math
from dataclasses import dataclass
from importlib.util import find_spec

from quire.contract.errors import ModelLoadError
from quire.gguf_file import GgufFile, GgufTensor


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a tensor is stored: in blocks of numbers with scales of their own.

    Attributes:
        name: as llama.cpp writes it.
        elements: of a block.
        num_bytes: of a block.
        has_grid: whether reading it needs quire-serve[gguf].
    """

    name: str
    elements: int
    num_bytes: int
    has_grid: bool = False

    def row_bytes(self, in_features: int) -> int:
        """Return the bytes of a row of whole blocks."""
        return in_features // self.elements * self.num_bytes


# By the number of ggml_type.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    28: BlockType("F64", 1, 8),
    24: BlockType("I8", 1, 1),
    25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4),
    27: BlockType("I64", 1, 8),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
    16: BlockType("IQ2_XXS", 256, 66, True),
    17: BlockType("IQ2_XS", 256, 74, True),
    22: BlockType("IQ2_S", 256, 82, True),
    18: BlockType("IQ3_XXS", 256, 98, True),
    21: BlockType("IQ3_S", 256, 110, True),
    19: BlockType("IQ1_S", 256, 50, True),
    29: BlockType("IQ1_M", 256, 56, True),
    20: BlockType("IQ4_NL", 32, 18, True),
    23: BlockType("IQ4_XS", 256, 136, True),
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


def num_bytes(tensor: GgufTensor) -> int:
    """Return the bytes of a tensor of a type that is served."""
    return BLOCK_TYPES[tensor.type_id].row_bytes(math.prod(tensor.shape))


def has_grids() -> bool:
    """Return whether the package that holds the grids is installed."""
    return find_spec("gguf") is not None


def check_tensors(file: GgufFile) -> None:
    """Check that the tensors of a file are of types that are served, and all there.

    Raises:
        ModelLoadError: one is not; names it.
    """
    size = file.path.stat().st_size
    for name, tensor in file.tensors.items():
        form = BLOCK_TYPES.get(tensor.type_id)
        if form is None:
            served = ", ".join(each.name for each in BLOCK_TYPES.values())
            got = _OTHERS.get(tensor.type_id, f"type {tensor.type_id}")
            raise ModelLoadError(f"{file.path}: {name}: must be one of {served}, got {got}")
        if form.has_grid and not has_grids():
            raise ModelLoadError(
                f"{file.path}: {name}: {form.name} needs the package gguf, which holds its grid: "
                "pip install 'quire-serve[gguf]'"
            )
        if not tensor.shape or 0 in tensor.shape or tensor.shape[-1] % form.elements:
            raise ModelLoadError(
                f"{file.path}: {name}: rows must be whole blocks of {form.elements} elements as "
                f"{form.name}, got {list(tensor.shape)}"
            )
        if tensor.begin + num_bytes(tensor) > size:
            raise ModelLoadError(f"{file.path}: not a whole GGUF file: it ends within {name}")
