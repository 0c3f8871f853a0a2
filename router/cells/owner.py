"""What a session with a cell reports to whoever owns it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from quire.contract.errors import OverloadedError, TooLargeError
from router.cells.choice import CellChoice
from router.requests.stream import RequestStream

if TYPE_CHECKING:
    from router.cells.session import CellSession


class CellOwner(Protocol):
    """Receives what happens to a cell. Called on the event loop; must not wait."""

    def cell_changed(self) -> None:
        """A cell connected, disconnected or reported its state."""

    def cell_connected(self, cell: "CellSession") -> CellChoice["CellSession"]:
        """A cell is connected. Returns among which cells it is to be chosen from now on."""

    def cell_ready(self) -> None:
        """A cell takes requests, and has joined those that may be chosen."""

    def cell_hands_over(self) -> None:
        """A cell has left those that may be chosen, and its requests are to leave it too."""

    def cell_disconnected(self, cell: "CellSession") -> None:
        """The session of a cell broke."""

    def streams_lost(self, streams: Iterable[RequestStream]) -> None:
        """These requests need a new place."""

    def stream_refused(
        self, stream: RequestStream, cell: "CellSession", error: OverloadedError
    ) -> None:
        """A new request found a cell's queue full."""

    def stream_too_large(
        self, stream: RequestStream, cell: "CellSession", error: TooLargeError
    ) -> None:
        """A request may become larger than a cell can hold."""

    def stream_postponed(self, stream: RequestStream, retry_after_ms: int) -> None:
        """A request that has begun found its new scheduler's queue full."""
