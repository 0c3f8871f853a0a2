"""Names of cache blocks by what they hold: the scheduler finds blocks by them, routers find cells.

A scheduler reports to its routers which blocks its cache holds, each by the first 64 bits of
its hash and only those at some depths of a prompt, so that the report stays small. Routers hash the
prompts they place in the same way.
"""

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as AbstractSequence
from hashlib import sha256

BYTES_OF_TOKEN = array("I").itemsize
HASH_BYTES = sha256().digest_size


def extend_block_hashes(
    hashes: list[bytes],
    token_ids: AbstractSequence[int],
    block_size: int,
    num_blocks: int,
    salt: bytes = b"",
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
        salt: sequences of different salts have no hash in common, whatever their tokens.
    """
    first = len(hashes)
    if first >= num_blocks:
        return
    assert len(token_ids) >= num_blocks * block_size, "only full blocks have a hash"
    before = hashes[-1] if hashes else root_hash(salt)
    tokens = array("I", token_ids[first * block_size : num_blocks * block_size]).tobytes()
    hashes.extend(hashes_after(before, tokens, block_size))


def root_hash(salt: bytes) -> bytes:
    """Return what stands for the hash before the first block of sequences of a salt."""
    return sha256(b"quire prefix" + salt).digest()


def hashes_after(before: bytes, tokens: bytes, block_size: int) -> Iterator[bytes]:
    """Yield the hashes of full blocks that follow one another.

    Args:
        before: hash of the block before them, or `root_hash`.
        tokens: [num_blocks * block_size] uint32 token ids, as bytes.
        block_size: tokens of a block.
    """
    stride = block_size * BYTES_OF_TOKEN
    for start in range(0, len(tokens), stride):
        before = sha256(before + tokens[start : start + stride]).digest()
        yield before


def is_reported_depth(depth: int) -> bool:
    """Return whether the block at a depth, 1 for the first of a prompt, is reported to routers.

    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ...: steps of at most a half, so that a router knows at least
    two thirds of what it could find, of any prompt, from twice the logarithm of its length.
    """
    return depth // (depth & -depth) in (1, 3)


def reported_depths(num_blocks: int) -> Iterator[int]:
    """Yield the depths up to `num_blocks` whose blocks are reported to routers, ascending."""
    power = 1
    while power <= num_blocks:
        yield power
        if power > 1 and power + power // 2 <= num_blocks:
            yield power + power // 2
        power *= 2


def short_hash(block_hash: bytes) -> int:
    """Return the first 64 bits of a hash: enough to choose a cell by, never to share a block by."""
    return int.from_bytes(block_hash[:8], "little")
