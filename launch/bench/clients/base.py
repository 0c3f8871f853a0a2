"""What every client does."""

from typing import Protocol

from launch.bench.datasets import Sample
from launch.bench.outcome import Outcome
from quire.contract.errors import QuireError


class RequestFailedError(QuireError):
    """A request that is measured failed, for the reason that its server reports."""

    code = "UNKNOWN"
    reason = "REQUEST_FAILED"


class BenchClient(Protocol):
    """A server's client.

    Attributes:
        model: name for requests; "" for the only one.
    """

    model: str

    async def first_model(self) -> str:
        """Return the name of the first model that the server lists.

        Raises:
            QuireError: it lists none, or cannot be reached.
        """

    async def send(self, sample: Sample, outcome: Outcome) -> None:
        """Send a request and read its answer to the end.

        Mutates: outcome, which has what came, also where this raises.

        Raises:
            QuireError: the request failed.
        """

    async def close(self) -> None:
        """Close all connections."""
