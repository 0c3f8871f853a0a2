"""What a request gets that asks for a vector in place of tokens."""

from dataclasses import dataclass

from quire.contract.errors import InvalidRequestError

MAX_DIMENSIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How the vector of a prompt is made: the hidden state of its last token, in float32.

    Attributes:
        normalize: whether it is scaled to a Euclidean length of 1.
        dimensions: only so many elements, the first ones, before it is scaled; None for all.

    Raises:
        InvalidRequestError: a value is of another type, or out of bounds.
    """

    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.normalize, bool):
            raise InvalidRequestError("normalize", f"must be a bool, got {self.normalize!r}")
        if self.dimensions is not None and not 1 <= self.dimensions <= MAX_DIMENSIONS:
            raise InvalidRequestError(
                "dimensions", f"must be in [1, {MAX_DIMENSIONS}], got {self.dimensions}"
            )


NORMALIZED = PoolingParams()
