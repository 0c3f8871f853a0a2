"""Domain objects that have the fields of their message, by the same names."""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

from google.protobuf.message import Message

T = TypeVar("T")


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a domain object by name, for the constructor of a message."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def from_fields(kind: type[T], message: Message, **others: Any) -> T:
    """Return a domain object made of a message's fields.

    What the message leaves out takes the default of the domain object, or else zero.

    Args:
        kind: a dataclass; its lists are tuples.
        message: has a field of the same name for each of its fields but `others`.
        others: fields that are read otherwise.
    """
    values = {field.name: value for field, value in message.ListFields()}
    for field in fields(kind):  # type: ignore[arg-type]
        name = field.name
        if name in others:
            continue
        if name not in values:
            if field.default is not MISSING:
                continue
            values[name] = getattr(message, name)
        value = values[name]
        others[name] = value if isinstance(value, (int, float, str, bytes)) else tuple(value)
    return kind(**others)
