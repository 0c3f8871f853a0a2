"""Decode in one kernel reads no slot that nothing has written, nor one that a block is writing."""

from pathlib import Path

import pytest
import torch

from tests.kernels.seed_layout import BLOCK_SIZES, empty_caches
from tests.nvcc import find_nvcc
from tests.ptx import interpreter
from tests.ptx.compile import CSRC, compile_text
from worker_svc.ops import compiled

LENGTHS = (1, 30, 77)
HEADS, HEAD_SIZE = 4, 80

# What is wrong: the text that is replaced, and by what. Results are right all the same, unless
# another block happens to write what is read.
MUTANTS = {
    "keys behind the range are read": (
        "if (token < range.end) {\n#pragma unroll",
        "if (true) {\n#pragma unroll",
    ),
    "values behind the range are read": ("token + kValueVector <= range.end", "true"),
}


def decode(block_size: int, kv_heads: int) -> None:
    """Decode over caches that are device memory and hold what has been cached, nothing besides.

    Of float32: who has written what is known of words of 4 bytes.
    """
    places = -(-max(LENGTHS) // block_size)
    caches = empty_caches(len(LENGTHS) * places, kv_heads, HEAD_SIZE, block_size, torch.float32)
    tables = torch.arange(len(LENGTHS) * places, dtype=torch.int32).view(len(LENGTHS), places)
    slots = torch.cat(
        [row * places * block_size + torch.arange(length - 1) for row, length in enumerate(LENGTHS)]
    )
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(len(slots), kv_heads, HEAD_SIZE, generator=rng)
    qkv = torch.randn(len(LENGTHS), HEADS + 2 * kv_heads, HEAD_SIZE, generator=rng)
    query = qkv[:, :HEADS].contiguous()
    fused, in_turn = (torch.full_like(query, torch.nan) for _ in range(2))
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    with interpreter.unwritten(caches[0]), interpreter.unwritten(caches[1]):
        compiled._C.reshape_and_cache_v1(rows, rows, *caches, slots)
        compiled._C.masked_multihead_attention(
            *(fused, qkv, None, None, True, *caches, tables, lengths, 0.1, max(LENGTHS))
        )
        compiled._C.paged_attention_v1(
            *(in_turn, query, *caches, tables, lengths, 0.1, None, max(LENGTHS), False)
        )
    torch.testing.assert_close(fused, in_turn, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_only_slots_of_earlier_tokens_are_read(
    cuda_isa: str, block_size: int, kv_heads: int
) -> None:
    decode(block_size, kv_heads)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_noticed(cuda_isa: str, tmp_path: Path, name: str) -> None:
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    old, new = MUTANTS[name]
    text = (CSRC / "seed/attention_v1.cuh").read_text()
    assert old in text, "the mutant needs another text"
    folder = tmp_path / "seed"
    folder.mkdir()
    (folder / "attention_v1.cuh").write_text(text.replace(old, new))
    source = folder / "one.cu"
    source.write_text((CSRC / "seed/fused_decode.cu").read_text())
    compile_text(source, "80", tmp_path / "one.ptx", "-I", str(tmp_path))
    message = "another block has written|nothing has written"
    with (
        interpreter.replaced((tmp_path / "one.ptx").read_text()),
        pytest.raises(RuntimeError, match=message),
    ):
        decode(16, 1)
