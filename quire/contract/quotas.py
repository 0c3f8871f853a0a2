"""How much an API key may ask for: requests and tokens per minute, requests at once."""

from dataclasses import dataclass

from quire.contract.errors import ConfigError

MAX_QUOTA = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of an API key, at all cells of a model together; None for no quota.

    Attributes:
        max_requests_per_minute: new requests, in [1, 2**32).
        max_tokens_per_minute: tokens that are computed for it, in [1, 2**32).
        max_concurrent: requests that wait or run, in [1, 2**32).

    Raises:
        ConfigError: one is out of bounds.
    """

    max_requests_per_minute: int | None = None
    max_tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            quota = getattr(self, name)
            if quota is not None and not 1 <= quota <= MAX_QUOTA:
                raise ConfigError(f"{name}: must be in [1, {MAX_QUOTA}], got {quota}")

    def __bool__(self) -> bool:
        return self != UNLIMITED


UNLIMITED = Quotas()
"""Of a key without quotas, and of callers without a key."""
