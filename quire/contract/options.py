"""Options as data: each is a field of a dataclass, with all that is to be known of it.

Command line, environment, the keywords of `LLM` and the checks of a value derive from the field.
"""

import inspect
import types
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from quire.contract.errors import ConfigError

T = TypeVar("T")
_KEY = "option"
# Larger limits only keep a value within its type on the wire; they are not worth showing.
_LARGEST_SHOWN = 2**30
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a string"),
    tuple: ((tuple, list), "several"),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval of numbers; NaN is in none.

    Attributes:
        low: least number.
        high: largest number.
        excludes_low: whether `low` itself is out of bounds.
        excludes_high: whether `high` itself is out of bounds.
    """

    low: float
    high: float
    excludes_low: bool = False
    excludes_high: bool = False

    def check(self, name: str, value: float) -> None:
        """Raise ConfigError, which names field, limit and value, unless a number is in bounds."""
        above = value > self.low if self.excludes_low else value >= self.low
        below = value < self.high if self.excludes_high else value <= self.high
        if not (above and below):
            raise ConfigError(f"{name}: must be in {self}, got {value}")

    def __str__(self) -> str:
        opening, closing = "[("[self.excludes_low], "])"[self.excludes_high]
        return f"{opening}{self.low}, {self.high}{closing}"


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option beside its name, type and default.

    Attributes:
        help: what it does; whole sentences.
        unit: of a number.
        bounds: of a number.
        choices: of a string, all of them; empty allows any.
        flags: on the command line; empty makes one of the field's name.
        envvar: variable that several commands read; None makes one for each command.
        metavar: what stands for a value in the help; None shows its type.
        shown_default: what the default means, where its value does not say it.
        internal: whether it is for tests and benchmarks, and no command takes it.
    """

    help: str
    unit: str = ""
    bounds: Bounds | None = None
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    envvar: str | None = None
    metavar: str | None = None
    shown_default: str = ""
    internal: bool = False

    @property
    def full_help(self) -> str:
        """The help text with bounds and unit."""
        if self.bounds is not None and self.bounds.high <= _LARGEST_SHOWN:
            return f"{self.help} In {self.bounds}{f' {self.unit}' if self.unit else ''}."
        if self.unit:
            return f"{self.help} In {self.unit}."
        return self.help


def option(
    default: T,
    help: str,  # noqa: A002 - as it is called everywhere else
    *,
    unit: str = "",
    bounds: Bounds | None = None,
    choices: Iterable[str] = (),
    flags: tuple[str, ...] = (),
    envvar: str | None = None,
    metavar: str | None = None,
    shown_default: str = "",
    internal: bool = False,
) -> T:
    """Return the default of a dataclass's field that is an option; arguments as of `Option`."""
    known = Option(
        *(help, unit, bounds, tuple(choices), flags, envvar, metavar, shown_default, internal)
    )
    return field(default=default, metadata={_KEY: known})


def same_option(group: type, name: str, **changes: Any) -> Any:
    """Return the default of a field that is an option of another class, too.

    Args:
        group: that class.
        name: of the option.
        changes: `default`, or attributes of `Option`, where they differ here.
    """
    [original] = (each for each in fields(group) if each.name == name)
    default = changes.pop("default", original.default)
    known = replace(original.metadata[_KEY], **changes)
    return field(default=default, metadata={_KEY: known})


def options_of(group: type) -> dict[str, Option]:
    """Return the options of a dataclass by name: its own first, then those of its bases."""
    found = {each.name: each.metadata[_KEY] for each in fields(group) if _KEY in each.metadata}
    order = [name for base in group.__mro__ for name in inspect.get_annotations(base)]
    return {name: found[name] for name in dict.fromkeys(order) if name in found}


def panel_of(group: type, name: str) -> str:
    """Return under which heading of the help an option of a dataclass stands."""
    owner = next(base for base in group.__mro__ if name in inspect.get_annotations(base))
    panel: str = vars(owner).get("PANEL", Options.PANEL)
    return panel


def defaults_of(group: type) -> dict[str, Any]:
    """Return the default of each field that has one."""
    return {each.name: each.default for each in fields(group) if each.default is not MISSING}


@cache
def types_of(group: type) -> dict[str, type]:
    """Return the type of each field, of `X | None` the X."""
    hints = get_type_hints(group)
    return {each.name: _without_none(hints[each.name]) for each in fields(group)}


def _without_none(hint: Any) -> type:
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = (each for each in get_args(hint) if each is not types.NoneType)
    return cast(type, get_origin(hint) or hint)


def values_of(options: Any, group: type) -> dict[str, Any]:
    """Return the values of a group's options, by name.

    Args:
        options: of a class that derives from `group`.
        group: whose options are wanted.
    """
    return {name: getattr(options, name) for name in options_of(group)}


def parse_values(group: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return values of a group's fields that come from JSON with the types that the fields have."""
    known = types_of(group)
    return {
        name: known[name](value)
        if known.get(name) in (tuple, Path) and value is not None
        else value
        for name, value in values.items()
    }


class Options:
    """Base of dataclasses whose fields are options.

    They have no slots, so that one class can have the options of several groups.

    Attributes:
        PANEL: of the help, under which the options of a class stand.
    """

    PANEL = "Options"

    def __post_init__(self) -> None:
        """Check each value against its field.

        Raises:
            ConfigError: a value is out of bounds; names field, limit and value.
        """
        group: type = type(self)
        kinds, defaults = types_of(group), defaults_of(group)
        for name, known in options_of(group).items():
            value = getattr(self, name)
            if value is not None or not _may_be_none(group, name):
                _check(name, value, known, kinds[name], bool(defaults.get(name)))


@cache
def _may_be_none(group: type, name: str) -> bool:
    return type(None) in get_args(get_type_hints(group)[name])


def _check(name: str, value: Any, known: Option, kind: type, is_filled: bool) -> None:
    # Paths and lists of addresses are checked by the class that has them.
    allowed, word = _KINDS.get(kind, ((object,), ""))
    number: Any = value
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind in (int, float)):
        raise ConfigError(f"{name}: must be {word}, got {value!r}")
    if known.choices and value not in known.choices:
        raise ConfigError(f"{name}: must be one of {', '.join(known.choices)}, got {value}")
    if known.bounds is not None:
        known.bounds.check(name, number)
    if kind is str and is_filled and not value:
        raise ConfigError(f"{name}: must not be empty, got {value!r}")
