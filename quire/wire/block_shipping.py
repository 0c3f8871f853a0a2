"""To and from the messages in which workers send each other blocks."""

from quire.contract.block_hashes import HASH_BYTES
from quire.contract.block_shipping import (
    BlockLayout,
    BlockOrder,
    BlockPiece,
    ImportOrder,
    ImportResult,
)
from quire.contract.errors import InvalidRequestError
from quire.v1 import worker_pb2
from quire.wire.fields import fields_of, from_fields
from quire.wire.mirror import cached_blocks_from_proto, cached_blocks_to_proto


def import_order_to_proto(epoch: int, order: ImportOrder) -> worker_pb2.ImportBlocksRequest:
    """Return the message of an order to fill blocks."""
    return worker_pb2.ImportBlocksRequest(
        epoch=epoch,
        source=order.source,
        blocks=cached_blocks_to_proto(order.blocks),
        limit_ms=order.limit_ms,
    )


def import_order_from_proto(message: worker_pb2.ImportBlocksRequest) -> ImportOrder:
    """Return the order of a message.

    Raises:
        InvalidRequestError: arrays that belong together differ in length.
    """
    blocks = cached_blocks_from_proto("blocks", message.blocks)
    return ImportOrder(message.source, blocks, message.limit_ms)


def import_result_to_proto(result: ImportResult) -> worker_pb2.ImportBlocksResponse:
    """Return the message of what came of an order."""
    return worker_pb2.ImportBlocksResponse(**fields_of(result))


def import_result_from_proto(message: worker_pb2.ImportBlocksResponse) -> ImportResult:
    """Return what came of an order."""
    return from_fields(ImportResult, message)


def block_order_to_proto(order: BlockOrder) -> worker_pb2.FetchBlocksRequest:
    """Return the message that asks for blocks."""
    return worker_pb2.FetchBlocksRequest(
        layout=worker_pb2.BlockLayout(**fields_of(order.layout)), digests=b"".join(order.digests)
    )


def block_order_from_proto(message: worker_pb2.FetchBlocksRequest) -> BlockOrder:
    """Return what a message asks for.

    Raises:
        InvalidRequestError: the digests are not of 32 bytes each.
    """
    digests = message.digests
    if len(digests) % HASH_BYTES:
        raise InvalidRequestError(
            "digests", f"must be {HASH_BYTES} bytes for each block, got {len(digests)} bytes"
        )
    return BlockOrder(
        from_fields(BlockLayout, message.layout),
        tuple(digests[start : start + HASH_BYTES] for start in range(0, len(digests), HASH_BYTES)),
    )


def block_piece_to_proto(piece: BlockPiece) -> worker_pb2.FetchBlocksResponse:
    """Return the message of a piece of a block."""
    return worker_pb2.FetchBlocksResponse(**fields_of(piece))


def block_piece_from_proto(message: worker_pb2.FetchBlocksResponse) -> BlockPiece:
    """Return the piece of a message."""
    return BlockPiece(message.contents, message.checksum)
