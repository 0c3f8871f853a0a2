"""To and from the messages in which a worker describes what it holds."""

from collections.abc import Sequence

from quire.contract.block_hashes import HASH_BYTES
from quire.contract.engine_options import CacheOptions
from quire.contract.steps import MirroredSequence
from quire.contract.workers import CachedBlock, CacheSpec, WorkerMirror
from quire.v1 import worker_pb2
from quire.wire.caches import cache_options_to_proto
from quire.wire.fields import fields_of, from_fields
from quire.wire.worker import check_parallel


def mirror_to_proto(mirror: WorkerMirror) -> worker_pb2.MirrorResponse:
    """Return the message of what a worker holds."""
    cache = mirror.cache
    return worker_pb2.MirrorResponse(
        sequences=[worker_pb2.MirroredSequence(**fields_of(each)) for each in mirror.sequences],
        last_step_id=mirror.last_step_id,
        num_blocks=0 if cache is None else cache.num_blocks,
        options=None if cache is None else cache_options_to_proto(cache.options),
        blocks=cached_blocks_to_proto(mirror.blocks),
        host_blocks=cached_blocks_to_proto(mirror.host_blocks),
    )


def mirror_from_proto(message: worker_pb2.MirrorResponse) -> WorkerMirror:
    """Return what a worker holds from a message.

    Raises:
        ConfigError: an option is out of bounds.
        InvalidRequestError: arrays that belong together differ in length.
    """
    options = from_fields(CacheOptions, message.options)
    return WorkerMirror(
        tuple(from_fields(MirroredSequence, each) for each in message.sequences),
        message.last_step_id,
        CacheSpec(message.num_blocks, options) if message.num_blocks else None,
        cached_blocks_from_proto("blocks", message.blocks),
        cached_blocks_from_proto("host_blocks", message.host_blocks),
    )


def cached_blocks_to_proto(blocks: Sequence[CachedBlock]) -> worker_pb2.CachedBlocks:
    """Return the message of blocks and what they hold."""
    return worker_pb2.CachedBlocks(
        block_ids=[block.block_id for block in blocks],
        depths=[block.depth for block in blocks],
        digests=b"".join(block.digest for block in blocks),
    )


def cached_blocks_from_proto(
    field: str, message: worker_pb2.CachedBlocks
) -> tuple[CachedBlock, ...]:
    """Return the blocks of a message.

    Args:
        field: name of the message, for the error.
        message: the message.

    Raises:
        InvalidRequestError: arrays that belong together differ in length.
    """
    starts = range(0, len(message.digests), HASH_BYTES)
    digests = [message.digests[start : start + HASH_BYTES] for start in starts]
    check_parallel(field, message.block_ids, message.depths, digests)
    return tuple(map(CachedBlock, message.block_ids, message.depths, digests))
