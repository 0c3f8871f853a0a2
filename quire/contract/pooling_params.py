"""What a request gets that asks for a vector in place of tokens."""

from dataclasses import dataclass

from quire.contract.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How the vector of a prompt is made: the hidden state of its last token, in float32.

    Attributes:
        normalize: whether it is scaled to a Euclidean length of 1.

    Raises:
        InvalidRequestError: a value is of another type.
    """

    normalize: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.normalize, bool):
            raise InvalidRequestError("normalize", f"must be a bool, got {self.normalize!r}")


NORMALIZED = PoolingParams()
