"""Channels to services."""

from typing import Any

import grpc

from quire.rpc.options import CLEAR_CHANNEL_OPTIONS
from quire.rpc.renewal import RenewingChannel, RenewingSyncChannel
from quire.security.tls import TlsFiles


def open_channel(
    address: str, tls: TlsFiles | None = None, server_name: str | None = None
) -> grpc.aio.Channel:
    """Return a channel to `address` that notices a dead peer within about fifteen seconds.

    Args:
        address: "host:port".
        tls: certificate to show and authorities to trust; None speaks in the clear.
        server_name: that the server's certificate must have, a role or a host; None for the host of
            `address`.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CLEAR_CHANNEL_OPTIONS)
    return RenewingChannel(address, tls, server_name)


def open_sync_channel(
    address: str, tls: TlsFiles | None = None, server_name: str | None = None
) -> Any:  # grpc.Channel, or what a stub needs of it
    """Return a channel as `open_channel` does, for code without an event loop."""
    if tls is None:
        return grpc.insecure_channel(address, options=CLEAR_CHANNEL_OPTIONS)
    return RenewingSyncChannel(address, tls, server_name)
