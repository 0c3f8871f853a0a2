"""Timeouts: the table of docs/operations.md has all of them, with the code's values and relations.

Each was right by itself when three of them together lost an answer. So what each must keep to
stands beside it, and is computed here from the code.
"""

import ast
import dataclasses
import importlib
import inspect
import operator
import re
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.config import ClusterConfig
from quire import AsyncClient
from quire.rpc.options import CHANNEL_OPTIONS
from router.config import RouterConfig
from scheduler_svc.config import SchedulerConfig
from worker_svc.config import WorkerConfig

ROOT = Path(__file__).parents[2]
CONFIGS = (RouterConfig, SchedulerConfig, WorkerConfig, ClusterConfig)
# Measuring and trying a cluster is no part of what it does.
TOOLS = ("launch/bench", "launch/torture")
# Names of times after which nothing is given up: how often something happens, or for how long a
# number counts.
NO_TIMEOUT = re.compile(
    r"INTERVAL|POLL|BACKOFF|RETRY|LIFE|LASTS|TICK|EVERY|REPORT|CHECK|PAUSE|BOUNDS|ORIGIN|MINUTE|"
    r"SETTLE|RECONNECT|AHEAD|WARM_UP|MAX_GAP|SLACK|KEEPALIVE|SHUN"
)
COMPARISONS = {
    "<": operator.lt,
    ">": operator.gt,
    "≤": operator.le,
    "≥": operator.ge,
    "=": operator.eq,
}
# Alternatives of one regular expression: a flag, a gRPC option, a dotted name, a parameter.
NAME = re.compile(r"--[a-z-]+|[A-Za-z_]\w*(?:\.\w+)*")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    seconds: float
    relations: tuple[str, ...]


def table() -> list[Row]:
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.split("\n## Timeouts\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [
        Row(name.strip(" `"), float(seconds), tuple(re.findall("`([^`]+)`", relations)))
        for name, seconds, _, relations in rows
    ]


ROWS = table()


def fields(config: type[Any]) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(config)}


def value_of(name: str) -> float:
    """Return the code's value of what the table names, in seconds."""
    if name.startswith("--"):
        option = name[2:].replace("-", "_")
        values = {fields(each)[option] for each in CONFIGS if option in fields(each)}
        assert len(values) == 1, f"{name}: services have {values}"
        return float(values.pop())
    if name == "resume_timeout":
        return float(inspect.signature(AsyncClient).parameters[name].default)
    if name.startswith("grpc."):
        return dict(CHANNEL_OPTIONS)[name] / 1000
    place, _, last = name.rpartition(".")
    if last.islower():
        place, _, kind = place.rpartition(".")
        return float(fields(getattr(importlib.import_module(place), kind))[last])
    value = getattr(importlib.import_module(place), last)
    return float(value) / (1000 if last.endswith("_MS") else 1)


def computed(side: str) -> float:
    """Return a sum of values and multiples of them, as `2 * a.b.C + --d`."""
    total = 0.0
    for term in side.split(" + "):
        product = 1.0
        for factor in term.split(" * "):
            product *= value_of(factor) if NAME.fullmatch(factor) else float(factor)
        total += product
    return total


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_timeout_has_the_value_and_keeps_the_relations_of_the_table(row: Row) -> None:
    assert value_of(row.name) == row.seconds
    assert row.relations, "which inequality must it keep?"
    for relation in row.relations:
        sign, side = relation.split(" ", 1)
        assert COMPARISONS[sign](row.seconds, computed(side)), f"{row.name} {relation}"


def constants() -> set[str]:
    """Return the names of all timeouts among the constants of modules."""
    found = set()
    for package in ("quire", "router", "scheduler_svc", "worker_svc", "launch"):
        for path in (ROOT / package).rglob("*.py"):
            place = path.relative_to(ROOT).with_suffix("")
            if str(place).startswith(TOOLS):
                continue
            found |= {
                ".".join((*place.parts, name))
                for name in map(_timeout_of, ast.parse(path.read_text()).body)
                if name
            }
    return found


def _timeout_of(node: ast.stmt) -> str:
    """Return the timeout that a statement of a module sets; empty if it sets none."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            pass
        case _:
            return ""
    # Another name of one that stands elsewhere, or a name of something else.
    is_number = not isinstance(value, ast.Attribute) and not (
        isinstance(value, ast.Constant) and isinstance(value.value, str)
    )
    is_time = re.fullmatch(r"[A-Z_0-9]+_M?S|TIMEOUT", name) and not NO_TIMEOUT.search(name)
    return name if is_number and is_time else ""


def options() -> set[str]:
    """Return the flags of all timeouts among the options of services."""
    names = {name for config in CONFIGS for name in fields(config)}
    return {
        "--" + name.replace("_", "-")
        for name in names
        if name.endswith(("_timeout_s", "keep_alive_interval", "grace_time_s"))
    }


def test_the_table_has_every_timeout_once() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert constants() | options() <= set(names)
