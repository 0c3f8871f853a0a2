"""Blocks of a cache as workers send them to each other."""

from dataclasses import dataclass

from quire.contract.workers import CachedBlock


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """What must be the same for blocks of two workers to have the same bytes for the same tokens.

    Attributes:
        numerics_id: of the model; element type of the cache and heads follow from it. Never "".
        block_size: tokens of a block.
        tensor_parallel_rank: which heads a block has.
        tensor_parallel_size: likewise.
    """

    numerics_id: str
    block_size: int
    tensor_parallel_rank: int
    tensor_parallel_size: int


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """Which blocks a worker asks another for.

    Attributes:
        layout: of both.
        digests: of the blocks, see quire/contract/block_hashes.py.
    """

    layout: BlockLayout
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """A piece of a block, as it is sent; pieces of a block come in order.

    Attributes:
        contents: its bytes: keys, then values, of the first layer, then of the next.
        checksum: SHA-256 of the whole block, with its last piece; else empty.
    """

    contents: bytes
    checksum: bytes = b""


@dataclass(frozen=True, slots=True)
class ImportOrder:
    """Blocks that a worker is to fill with what another holds.

    Attributes:
        source: "host:port" of the other.
        blocks: each a block of this worker, and what it is to hold.
        limit_ms: how long it may take; what is there by then is kept.
    """

    source: str
    blocks: tuple[CachedBlock, ...]
    limit_ms: int


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What came of an ImportOrder.

    Attributes:
        num_blocks: so many of its blocks, from the first, hold now what they are to hold.
        num_bytes: fetched for them.
        reason: why there are not more; "" if they are all there.
    """

    num_blocks: int
    num_bytes: int = 0
    reason: str = ""
