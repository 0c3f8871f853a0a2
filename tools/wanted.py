"""Prints what pyproject.toml requires under some names, one requirement a line: wanted.py NAME ...

A NAME is an extra, which brings what Quire needs without any, a dependency group, or build-system.
It needs no package: pip before 25.1 cannot read groups, and tools/bootstrap.sh runs it in an empty
environment.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def wanted(names: Iterable[str]) -> list[str]:
    """Return the requirements under some names, each line once.

    Raises:
        SystemExit: pyproject.toml has no such extra or group.
    """
    tables = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    return list(dict.fromkeys(line for name in names for line in _lines(tables, name)))


def _lines(tables: dict[str, Any], name: str) -> Iterator[str]:
    project = tables["project"]
    if name == "build-system":
        yield from tables["build-system"]["requires"]
    elif name in project["optional-dependencies"]:
        yield from project["dependencies"]
        for line in project["optional-dependencies"][name]:
            if line.startswith(own := f"{project['name']}["):
                for other in line.removeprefix(own).rstrip("]").split(","):
                    yield from _lines(tables, other)
            else:
                yield line
    elif name in tables["dependency-groups"]:
        for each in tables["dependency-groups"][name]:
            if isinstance(each, str):
                yield each
            else:
                yield from _lines(tables, each["include-group"])
    else:
        raise SystemExit(f"error: NAME: must be an extra or a group of pyproject.toml, got {name}")


if __name__ == "__main__":
    print(*wanted(sys.argv[1:]), sep="\n")
