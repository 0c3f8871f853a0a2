"""Options as fields of dataclasses: what is refused, in which words, and how they are combined."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.contract.errors import ConfigError
from quire.contract.options import (
    Bounds,
    Options,
    option,
    options_of,
    parse_values,
    same_option,
    values_of,
)
from quire.contract.service_options import ServiceOptions


@dataclass(frozen=True, kw_only=True)
class Tea(Options):
    leaves: str = option("green", "Which leaves.", choices=("green", "black"))
    cups: int = option(2, "How many.", bounds=Bounds(1, 8))
    minutes: float | None = option(
        None, "How long it draws.", unit="minutes", bounds=Bounds(0, 10, excludes_low=True)
    )
    has_milk: bool = option(False, "Whether there is milk in it.")
    guests: tuple[str, ...] = option((), "Who comes.")
    recipe: Path | None = option(None, "File to read.")


@dataclass(frozen=True, kw_only=True)
class Party(Tea):
    place: str = option("garden", "Where.")
    cups: int = same_option(Tea, "cups", default=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"leaves": "red"}, "leaves: must be one of green, black, got red"),
        ({"cups": 0}, "cups: must be in [1, 8], got 0"),
        ({"cups": 2.5}, "cups: must be an integer, got 2.5"),
        ({"cups": "2"}, "cups: must be an integer, got '2'"),
        ({"cups": True}, "cups: must be an integer, got True"),
        ({"minutes": 0.0}, "minutes: must be in (0, 10], got 0.0"),
        ({"minutes": float("nan")}, "minutes: must be in (0, 10], got nan"),
        ({"has_milk": 1}, "has_milk: must be true or false, got 1"),
        ({"place": ""}, "place: must not be empty, got ''"),
    ],
)
def test_a_refusal_names_field_limit_and_value(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Party(**values)  # type: ignore[arg-type]
    assert caught.value.message == message


def test_an_option_may_be_another_classes_with_another_default() -> None:
    assert (Tea().cups, Party().cups) == (2, 8)
    assert options_of(Party)["cups"] == options_of(Tea)["cups"]
    with pytest.raises(ConfigError, match="cups"):
        Party(cups=9)


def test_own_options_come_before_those_of_bases() -> None:
    assert list(options_of(Party)) == [
        *("place", "cups"),
        *("leaves", "minutes", "has_milk", "guests", "recipe"),
    ]
    assert set(values_of(Party(leaves="black"), Tea)) == set(options_of(Tea))


def test_help_ends_with_bounds_and_unit() -> None:
    known = options_of(Tea)
    assert known["minutes"].full_help == "How long it draws. In (0, 10] minutes."
    assert known["cups"].full_help == "How many. In [1, 8]."
    assert known["leaves"].full_help == "Which leaves."


def test_values_come_back_from_json_with_their_types() -> None:
    values = {"guests": ["a", "b"], "recipe": "/r", "minutes": None, "model": "m"}
    assert parse_values(Tea, values) == {
        "guests": ("a", "b"),
        "recipe": Path("/r"),
        "minutes": None,
        "model": "m",
    }
    assert parse_values(Tea, {"recipe": None}) == {"recipe": None}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"admin_port": -1}, ["admin_port", "[0, 65535]", "-1"]),
        ({"admin_port": 65536}, ["admin_port", "65536"]),
        ({"admin_host": ""}, ["admin_host", "empty"]),
        ({"host": ""}, ["host", "empty"]),
        ({"host": "0.0.0.0"}, ["host", "0.0.0.0", "--tls-dir"]),
        ({"log_level": "loud"}, ["log_level", "debug, info, warning, error", "loud"]),
    ],
)
def test_what_every_service_refuses(values: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceOptions(**values)  # type: ignore[arg-type]
    assert all(part in caught.value.message for part in parts), caught.value.message
