"""What a schema allows, as alternatives that can be written down member by member."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isfinite
from typing import Any

from quire.json_schemas import resolve

# Of one schema: those of `anyOf` within `allOf` multiply.
MAX_ALTERNATIVES = 256
# Schemas that are read for one grammar, each as often as it is referred to; of what they list
# (values, members, patterns) some count as one, each as often as it is copied or compared.
MAX_VISITS = 2**14
_ITEMS_A_VISIT = 8
_LOOKUP_VISITS = 100
ALL_TYPES = frozenset(("string", "number", "boolean", "null", "array", "object"))
# What is not obeyed here.
_UNOBEYED = frozenset(
    (
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("propertyNames", "patternProperties", "minProperties", "maxProperties", "$dynamicRef"),
    )
)


class NotServedError(Exception):
    """A schema asks for what cannot be obeyed; its text says what."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One alternative of a schema: it allows the values that have all of this.

    Attributes:
        types: of JSON that a value may have; an integer is a number.
        values: the only ones; None for any.
        least, most: characters of a string.
        patterns: that a string has a match of.
        formats: of a string.
        properties: schemas of an object's members; it has to obey all that one has.
        required: names of members that have to be there.
        additional: schema of other members; None where nothing is said of them.
        unobeyed: keywords that have no place here.
    """

    types: frozenset[str] = ALL_TYPES
    values: tuple[Any, ...] | None = None
    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    additional: Any = None
    unobeyed: frozenset[str] = frozenset()

    @property
    def num_items(self) -> int:
        """How much it lists: what a copy of it costs."""
        lists = (self.values or (), self.patterns, self.formats, self.required)
        return sum(map(len, (*lists, *self.properties.values())))

    def merged(self, other: "Shape") -> "Shape":
        """Return what both allow."""
        properties = dict(self.properties)
        for name, schemas in other.properties.items():
            properties[name] = (*properties.get(name, ()), *schemas)
        return Shape(
            types=self.types & other.types,
            values=_common(self.values, other.values),
            least=max(self.least, other.least),
            most=min((each.most for each in (self, other) if each.most is not None), default=None),
            patterns=self.patterns + other.patterns,
            formats=self.formats + other.formats,
            properties=properties,
            required=tuple(dict.fromkeys(self.required + other.required)),
            additional=other.additional if self.additional is None else self.additional,
            unobeyed=self.unobeyed | other.unobeyed,
        )


class Visits:
    """Counts what is read for one grammar: a short schema may refer to itself without an end."""

    def __init__(self) -> None:
        self._left = MAX_VISITS

    def spend(self, number: int = 1) -> None:
        """Count some.

        Raises:
            NotServedError: they are too many.
        """
        self._left -= number
        if self._left < 0:
            raise NotServedError("too many references, alternatives, or values and members of them")

    def spend_items(self, number: int) -> None:
        """Count what is listed; raises as `spend`."""
        self.spend(number // _ITEMS_A_VISIT)


def shapes(root: Mapping[str, Any], schema: Any, kind: str, visits: Visits) -> list[Shape]:
    """Return the alternatives of a schema; none where it allows nothing.

    Args:
        root: of the document, as `readable` returns it.
        schema: in it.
        kind: the type of JSON of which the alternatives of `oneOf` have to exclude each other.
        visits: to be added to.

    Raises:
        NotServedError: a reference leads out of the document, alternatives of `oneOf` may hold at
            once, or there are too many.
    """
    return _Shapes(root, kind, visits).of(schema, ())


class _Shapes:
    def __init__(self, root: Mapping[str, Any], kind: str, visits: Visits) -> None:
        self._root = root
        self._kind = kind
        self._visits = visits

    def of(self, schema: Any, path: tuple[str, ...]) -> list[Shape]:
        """Return alternatives; those of references that lead back to themselves are none."""
        self._visits.spend()
        if schema is False:
            return []
        if not isinstance(schema, Mapping):
            return [Shape()]
        self._visits.spend_items(len(_list(schema, "enum")))
        found = [_own(schema)]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = self._both(found, self._referenced(reference, path))
        for each in _list(schema, "allOf"):
            found = self._both(found, self.of(each, path))
        for name in ("anyOf", "oneOf"):
            if name in schema:
                branches = [self.of(each, path) for each in _list(schema, name)]
                if name == "oneOf":
                    self._check_apart(branches)
                found = self._both(found, [each for branch in branches for each in branch])
        return [each for each in found if each.types and each.values != ()]

    def _referenced(self, reference: str, path: tuple[str, ...]) -> list[Shape]:
        if reference in path:
            return []
        if not reference.startswith("#/"):
            self._visits.spend(_LOOKUP_VISITS)
        target = resolve(dict(self._root), reference)
        if target is None:
            raise NotServedError(f"a reference to {reference[:64]!r}, which is not in it")
        return self.of(target, (*path, reference))

    def _both(self, ones: Sequence[Shape], others: Sequence[Shape]) -> list[Shape]:
        """Return the alternatives of what two schemas allow."""
        if len(ones) * len(others) > MAX_ALTERNATIVES:
            raise NotServedError(f"more than {MAX_ALTERNATIVES} alternatives")
        self._visits.spend_items(
            len(others) * sum(each.num_items for each in ones)
            + len(ones) * sum(each.num_items for each in others)
        )
        return [one.merged(other) for one in ones for other in others]

    def _check_apart(self, branches: Sequence[Sequence[Shape]]) -> None:
        for one, other in combinations(branches, 2):
            if not all(self._are_apart(each, another) for each in one for another in other):
                raise NotServedError("alternatives of oneOf that do not exclude each other")

    def _are_apart(self, one: Shape, other: Shape) -> bool:
        """Whether no value of the kind is of both."""
        self._visits.spend()
        self._visits.spend_items(len(one.values or ()) + len(other.values or ()))
        if self._kind not in one.types & other.types:
            return True
        if _common(one.values, other.values) == ():
            return True
        both = set(one.required) & set(other.required)
        return any(
            _common(self._values(one, name), self._values(other, name)) == () for name in both
        )

    def _values(self, shape: Shape, name: str) -> tuple[Any, ...] | None:
        """Return the only values of a member, None for any."""
        found: list[Any] = []
        for schema in shape.properties.get(name, (True,)):
            for each in self.of(schema, ()):
                if each.values is None:
                    return None
                found += each.values
        return tuple(found)


def _own(schema: Mapping[str, Any]) -> Shape:
    """Return what the members of a schema say that are no schemas to be obeyed besides."""
    stated = schema.get("type")
    types = ALL_TYPES
    if stated is not None:
        names = stated if isinstance(stated, list) else [stated]
        types = frozenset("number" if each == "integer" else str(each) for each in names)
    values = tuple(_list(schema, "enum")) if "enum" in schema else None
    if "const" in schema:
        values = _common(values, (schema["const"],))
    if values is not None:
        values = tuple(each for each in values if _type(each) in types)
        types &= frozenset(map(_type, values))
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    pattern, form = schema.get("pattern"), schema.get("format")
    return Shape(
        types=types,
        values=values,
        least=_count(schema, "minLength") or 0,
        most=_count(schema, "maxLength"),
        patterns=(pattern,) if isinstance(pattern, str) else (),
        formats=(form,) if isinstance(form, str) else (),
        properties={name: (each,) for name, each in properties.items()},
        required=tuple(each for each in _list(schema, "required") if isinstance(each, str)),
        additional=schema.get("additionalProperties"),
        unobeyed=_UNOBEYED & schema.keys(),
    )


def _common(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Return the values that are in both; None stands for all."""
    if one is None or other is None:
        return other if one is None else one
    both = set(map(_key, other))
    return tuple(each for each in one if _key(each) in both)


def _key(value: Any) -> Hashable:
    """Return what is equal for values that are equal in JSON, where 1 is 1.0 and true is not."""
    kind = _type(value)
    if isinstance(value, list):
        return kind, tuple(map(_key, value))
    if isinstance(value, dict):
        return kind, frozenset((name, _key(each)) for name, each in value.items())
    return kind, value


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _count(schema: Mapping[str, Any], name: str) -> int | None:
    value = schema.get(name)
    if isinstance(value, float) and not isfinite(value):
        raise NotServedError(f"{name} without an end")
    return int(value) if isinstance(value, int | float) else None
