"""How a router and a scheduler meet: the connection, and whether they understand each other."""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, TypeAlias

import grpc

from quire.contract.sessions import Welcome
from quire.contract.versions import check_protocol
from quire.rpc.call_metadata import PROTOCOL_METADATA

if TYPE_CHECKING:
    from quire.v1 import scheduler_pb2, scheduler_pb2_grpc

# How long to wait for a connection before the log has the reason that there is none.
CONNECT_S = 5.0

# Generic in its stub only.
SessionCall: TypeAlias = (
    "grpc.aio.StreamStreamCall[scheduler_pb2.SessionRequest, scheduler_pb2.SessionResponse]"
)


async def is_connected(channel: grpc.aio.Channel) -> bool:
    """Wait for a connection, and return whether there is one; a call then fails with the reason."""
    try:
        async with asyncio.timeout(CONNECT_S):
            await channel.channel_ready()
    except TimeoutError:
        return False
    return True


def open_session(stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub") -> SessionCall:
    """Open a session; the scheduler refuses it if this release is too far from its own."""
    return stub.Session(metadata=PROTOCOL_METADATA)


class Connecting(Protocol):
    """A cell that a router keeps a session with, or tries to."""

    address: str
    connected: bool
    refusal: str


def why_none_is_connected(cells: Collection[Connecting]) -> str:
    """Return why a router has no session, in one line; empty if it has one."""
    if any(cell.connected for cell in cells):
        return ""
    refusals = [f"{cell.address}: {cell.refusal}" for cell in cells if cell.refusal]
    return "; ".join(refusals) or "no scheduler is connected"


def check_welcome(welcome: Welcome, address: str) -> None:
    """Check that a scheduler is not too far from this release.

    Args:
        welcome: from it.
        address: of it.

    Raises:
        ProtocolDiffersError: it is; names both versions.
    """
    check_protocol(welcome.protocol_version, f"scheduler {address}")
