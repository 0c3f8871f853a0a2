"""What all calls for vectors of a router share, so that together they leave room for others."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from quire.contract.errors import OverloadedError, RequestExistsError

# Vectors that are computed, or wait for a client to read them.
MAX_HELD_BYTES = 2**29
RETRY_AFTER_MS = 1000


class VectorCalls:
    """The calls for vectors of a router, through whichever of its fronts they came.

    Attributes:
        num_held_bytes: of their vectors, from the beginning of a call until its client has them.
    """

    def __init__(self) -> None:
        self.num_held_bytes = 0
        # Of those that are being computed: set to end one. By caller and request id.
        self._aborted: dict[tuple[str, str], asyncio.Event] = {}

    def __len__(self) -> int:
        """Return how many are being computed."""
        return len(self._aborted)

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Count the vectors of a call while they are held.

        Raises:
            OverloadedError: with them all calls would hold too much.
        """
        number = self.num_held_bytes + num_bytes
        if number > MAX_HELD_BYTES:
            raise OverloadedError(
                f"vectors: at most {MAX_HELD_BYTES} bytes are held for all calls, got {number}",
                RETRY_AFTER_MS,
            )
        self.num_held_bytes = number
        try:
            yield
        finally:
            self.num_held_bytes -= num_bytes

    @contextmanager
    def open(self, request_id: str, caller: str) -> Iterator[asyncio.Event]:
        """Yield what is set when a call is aborted that is being computed.

        Raises:
            RequestExistsError: another call of the caller has its id.
        """
        key = caller, request_id
        self.check_free(request_id, caller)
        aborted = self._aborted[key] = asyncio.Event()
        try:
            yield aborted
        finally:
            del self._aborted[key]

    def check_free(self, request_id: str, caller: str) -> None:
        """Check that no call of a caller has an id, also where its request of that id has ended.

        Raises:
            RequestExistsError: one has it.
        """
        if (caller, request_id) in self._aborted:
            raise RequestExistsError(f"request_id: {request_id} is in use")

    def abort(self, request_id: str, caller: str) -> bool:
        """End a caller's call; return whether there was one."""
        aborted = self._aborted.get((caller, request_id))
        if aborted is not None:
            aborted.set()
        return aborted is not None
