"""What the blocks of GGUF's tensors stand for.

docs/numerics.md defines it; one rounding at most, so no order could change a bit.

Source: github.com/ggml-org/ggml, ggml-quants.c.
"""

from collections.abc import Callable

import torch

from worker_svc.loading import gguf_grids as grids
from worker_svc.loading import gguf_integers as integers
from worker_svc.loading.gguf_types import BlockType

# Of elements that are read at once: what lies between bytes and numbers stays in the cache.
_CHUNK_ELEMENTS = 2**20


def _plain(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda blocks: blocks.view(dtype).float()


# From blocks [n, bytes] uint8 to [n, elements] float32, by the name of the type.
_READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F32": _plain(torch.float32),
    "F16": _plain(torch.float16),
    "BF16": _plain(torch.bfloat16),
    "F64": _plain(torch.float64),
    "I8": _plain(torch.int8),
    "I16": _plain(torch.int16),
    "I32": _plain(torch.int32),
    "I64": _plain(torch.int64),
    "Q4_0": integers.q4_0,
    "Q4_1": integers.q4_1,
    "Q5_0": integers.q5_0,
    "Q5_1": integers.q5_1,
    "Q8_0": integers.q8_0,
    "Q2_K": integers.q2_k,
    "Q3_K": integers.q3_k,
    "Q4_K": integers.q4_k,
    "Q5_K": integers.q5_k,
    "Q6_K": integers.q6_k,
    "TQ1_0": integers.tq1_0,
    "TQ2_0": integers.tq2_0,
    "MXFP4": integers.mxfp4,
    "NVFP4": integers.nvfp4,
    "IQ2_XXS": grids.iq2_xxs,
    "IQ2_XS": grids.iq2_xs,
    "IQ2_S": grids.iq2_s,
    "IQ3_XXS": grids.iq3_xxs,
    "IQ3_S": grids.iq3_s,
    "IQ1_S": grids.iq1_s,
    "IQ1_M": grids.iq1_m,
    "IQ4_NL": grids.iq4_nl,
    "IQ4_XS": grids.iq4_xs,
}


def dequantised(form: BlockType, rows: torch.Tensor) -> torch.Tensor:
    """Return [N, K] float32 of rows [N, bytes] uint8 of a type."""
    num_rows, row_bytes = rows.shape
    in_features = row_bytes // form.num_bytes * form.elements
    result = torch.empty((num_rows, in_features), dtype=torch.float32)
    step = max(1, _CHUNK_ELEMENTS // max(1, in_features))
    for begin in range(0, num_rows, step):
        blocks = rows[begin : begin + step].reshape(-1, form.num_bytes)
        result[begin : begin + step] = _READERS[form.name](blocks).view(-1, in_features)
    return result
