"""FlashInfer's paged decode on tensor cores, with which ours is compared; as a program, one call.

FlashInfer compiles its kernels at their first call, for a minute: python -m bench.flashinfer_decode
has that done before anything is measured.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_WORKSPACE_BYTES = 2**28


def flashinfer_decode(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: list[int]
) -> Callable[[], object] | None:
    """Return a call of FlashInfer's decode attention; None where it is not installed.

    Args:
        query: [sequences, heads, D].
        keys: [blocks, kv heads, block size, D] of one dtype with the query.
        values: as keys.
        tables: [sequences, most blocks] int32, on the GPU.
        lengths: tokens of each sequence.
    """
    if importlib.util.find_spec("flashinfer") is None:
        return None
    flashinfer: Any = importlib.import_module("flashinfer")
    kv_heads, block_size, head_size = keys.shape[1:]
    counts = [-(-length // block_size) for length in lengths]
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    wrapper.plan(
        torch.tensor([0, *counts]).cumsum(0).int().cuda(),
        torch.cat([row[:count] for row, count in zip(tables, counts, strict=True)]),
        torch.tensor([(length - 1) % block_size + 1 for length in lengths]).int().cuda(),
        query.shape[1],
        kv_heads,
        head_size,
        block_size,
        q_data_type=query.dtype,
        kv_data_type=keys.dtype,
    )
    run: Callable[[Tensor, tuple[Tensor, Tensor]], object] = wrapper.run
    return lambda: run(query, (keys, values))


def main() -> int:
    """Call it once; 1 if that cannot be done."""
    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 1
    caches = torch.zeros(2, 1, 8, 16, 128, dtype=torch.bfloat16, device="cuda")
    tables = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    query = torch.zeros(1, 32, 128, dtype=torch.bfloat16, device="cuda")
    call = flashinfer_decode(query, caches[0], caches[1], tables, [16])
    if call is None:
        print("FlashInfer is not installed", file=sys.stderr)
        return 1
    call()
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
