"""Channels to services."""

import grpc

from quire.rpc.options import CHANNEL_OPTIONS


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to `address` that notices a dead peer within about fifteen seconds."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
