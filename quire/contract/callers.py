"""Who calls a router, and what its API key allows."""

import re
from dataclasses import dataclass

from quire.contract.errors import ConfigError, InvalidRequestError
from quire.contract.quotas import UNLIMITED, Quotas
from quire.contract.sessions import MAX_WEIGHT, MIN_WEIGHT

MAX_PRIORITY = 100
# Of an API key, in characters.
MAX_KEY_LENGTH = 256
_KEY = re.compile(r"[!-~]+")


def check_key(key: str) -> None:
    """Check that an API key can be sent as one.

    Raises:
        ConfigError: it cannot; the message does not contain it.
    """
    if len(key) > MAX_KEY_LENGTH or not _KEY.fullmatch(key):
        raise ConfigError(
            f"api_key: must be at most {MAX_KEY_LENGTH} printable ASCII characters, no spaces"
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The name and the rights of an API key; without a name, of callers that need none.

    Attributes:
        name: of the key; requests of a name are one tenant's.
        weight: of the tenant's share, in [1e-6, 1e6].
        min_priority: its requests go before others at most as those of this priority do, in
            [-100, 100].
        quotas: how much it may ask for.

    Raises:
        ConfigError: weight or min_priority is out of bounds.
    """

    name: str = ""
    weight: float = 1.0
    min_priority: int = -MAX_PRIORITY
    quotas: Quotas = UNLIMITED

    def __post_init__(self) -> None:
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise ConfigError(
                f"weight: must be in [{MIN_WEIGHT:g}, {MAX_WEIGHT:g}], got {self.weight}"
            )
        if abs(self.min_priority) > MAX_PRIORITY:
            raise ConfigError(
                f"min_priority: must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}], "
                f"got {self.min_priority}"
            )

    def check_priority(self, priority: int) -> None:
        """Check that a request of the caller may have a priority.

        Raises:
            InvalidRequestError: it may not.
        """
        if not self.min_priority <= priority <= MAX_PRIORITY:
            raise InvalidRequestError(
                "priority",
                f"must be in [{self.min_priority}, {MAX_PRIORITY}] with this API key, "
                f"got {priority}",
            )


ANYONE = Caller()
"""Who calls a router that asks for no API key."""
