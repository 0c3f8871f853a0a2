"""An example of a message."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message


@dataclass(frozen=True)
class Example:
    """A domain object, and the two functions that its message stands between.

    Attributes:
        value: every field of it differs from what an absent field is read as.
        write: returns its message.
        read: returns the domain object of a message.
    """

    value: Any
    write: Callable[[Any], Message]
    read: Callable[[Any], Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.write(self.value).DESCRIPTOR.name}-{type(self.value).__name__}"
