"""Fields of a JSON body: their types are checked here, their bounds where they are used."""

from collections.abc import Mapping
from typing import Any

from quire.contract.errors import InvalidRequestError
from router.http.bodies import kind_of


class Fields:
    """The fields of a JSON object. One that is null counts as absent.

    Args:
        values: of the object.
        path: what messages put before the name of a field, e.g. "stream_options.".

    Attributes:
        own_names: for fields that the contract names otherwise, the name that the client sent, by
            the contract's. The function that reads such a field adds its entry.

    Every method raises InvalidRequestError, which names field and type, where a field has another
    type; without a default it returns None for one that is absent.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path
        self.own_names: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def path(self, name: str) -> str:
        """Return the name of a field in messages."""
        return self._path + name

    def refuse(self, name: str, message: str) -> InvalidRequestError:
        """Return the error that says what is wrong with a field."""
        return InvalidRequestError(self.path(name), message)

    def value(self, name: str) -> Any:
        """Return whatever a field holds; None where it is absent."""
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        return self._typed(name, str, "a string") if name in self else default

    def given_text(self, name: str) -> str:
        """Return a string that has to be there."""
        if name not in self:
            raise self.refuse(name, "must be a string, got none")
        return self.text(name)

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        return self._typed(name, bool, "true or false") if name in self else default

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return an integer; 3.0 is one."""
        return self.as_integer(name, self._values[name]) if name in self else default

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        return self.as_number(name, self._values[name]) if name in self else default

    def texts(self, name: str, max_items: int | None = None) -> tuple[str, ...]:
        """Return an array of strings, of at most so many; one string counts as one of it."""
        value = self._values.get(name)
        if isinstance(value, str):
            return (value,)
        items = self.items(name, max_items)
        for item in items:
            if not isinstance(item, str):
                raise self.refuse(name, f"must hold strings, got {kind_of(item)}")
        return tuple(items)

    def integers(self, name: str, max_items: int | None = None) -> tuple[int, ...]:
        """Return an array of integers, of at most so many."""
        return tuple(self.as_integer(name, item) for item in self.items(name, max_items))

    def items(self, name: str, max_items: int | None = None) -> list[Any]:
        """Return an array, of at most so many items."""
        items: list[Any] = self._typed(name, list, "an array") if name in self else []
        if max_items is not None and len(items) > max_items:
            raise self.refuse(name, f"must have at most {max_items} items, got {len(items)}")
        return items

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object as it is; an empty one where it is absent."""
        values: dict[str, Any] = self._typed(name, dict, "an object") if name in self else {}
        return values

    def as_mapping(self) -> dict[str, Any]:
        """Return all of them as they are."""
        return dict(self._values)

    def fields(self, name: str) -> "Fields":
        """Return the fields of an object; of one that is absent, none."""
        return Fields(self.mapping(name), f"{self.path(name)}.")

    def names(self) -> list[str]:
        """Return the names of the fields that are there."""
        return [name for name in self._values if name in self]

    def as_integer(self, name: str, value: object) -> int:
        """Return a value of a field that must be an integer."""
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            got = repr(value) if isinstance(value, float) else kind_of(value)
            raise self.refuse(name, f"must be an integer, got {got}")
        return value

    def as_number(self, name: str, value: object) -> float:
        """Return a value of a field that must be a number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(name, f"must be a number, got {kind_of(value)}")
        try:
            return float(value)
        except OverflowError:
            raise self.refuse(name, "must be a number of double precision") from None

    def _typed(self, name: str, kind: type, what: str) -> Any:
        value = self._values[name]
        if not isinstance(value, kind):
            raise self.refuse(name, f"must be {what}, got {kind_of(value)}")
        return value
