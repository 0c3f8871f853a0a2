"""The attention kernels that the field began with, against the float64 oracle."""

import pytest
import torch

from tests.kernels import oracle
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History
from tests.kernels.seed_layout import BLOCK_SIZES, allowed_ulps, filled
from worker_svc.ops import compiled

LENGTHS = (1, 40, 700)


@pytest.mark.pairwise
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_size", "has_alibi"), [(64, False), (80, True), (128, False)])
def test_both_versions(
    cuda_isa: str,
    version: int,
    block_size: int,
    dtype: torch.dtype,
    head_size: int,
    has_alibi: bool,
) -> None:
    histories = [
        History.random(length, 4, 2, head_size, dtype, seed) for seed, length in enumerate(LENGTHS)
    ]
    (keys, values), tables, _ = filled(histories, block_size)
    query = torch.stack([history.query[-1] for history in histories])
    out = torch.full_like(query, torch.nan)
    slopes = torch.tensor([0.5, 0.1, 0.02, 0.0]) if has_alibi else None
    scale = head_size**-0.5
    seq_lens = torch.tensor(LENGTHS, dtype=torch.int32)
    compiled._C.paged_attention_v1(
        *(out, query, keys, values, tables, seq_lens),
        *(scale, slopes, max(LENGTHS), version == 2),
    )
    for actual, history in zip(out, histories, strict=True):
        last = len(history.key) - 1
        expected, magnitude = oracle.attention(
            history.query[-1:],
            history.key,
            history.value,
            last,
            scale,
            **({} if slopes is None else {"alibi_slopes": slopes}),
        )
        allowed = allowed_ulps(history.query[-1], history.key, block_size, scale)
        oracle.assert_close(actual[None], expected, dtype, 1, allowed * magnitude)
