"""Names for the contents of cache blocks: the same prefix of tokens, the same name."""

from array import array
from collections.abc import Sequence
from hashlib import sha256

_NO_PREFIX = sha256(b"quire prefix").digest()


def extend_block_hashes(
    hashes: list[bytes], token_ids: Sequence[int], block_size: int, num_blocks: int
) -> None:
    """Hash further full blocks of a sequence.

    A hash covers the block's tokens and, through the hash before it, all tokens before them: keys
    and values depend on those and on nothing else (the invariance rule). It is cryptographic, since
    equal hashes hand one request the cache of another.

    Mutates: hashes.

    Args:
        hashes: of the first blocks of the sequence.
        token_ids: of the sequence.
        block_size: tokens of a block.
        num_blocks: how many blocks to have hashed in the end; all must be full.
    """
    for index in range(len(hashes), num_blocks):
        tokens = token_ids[index * block_size : (index + 1) * block_size]
        assert len(tokens) == block_size, "only full blocks have a hash"
        before = hashes[-1] if hashes else _NO_PREFIX
        hashes.append(sha256(before + array("I", tokens).tobytes()).digest())
