"""Variables of the environment that begin with QUIRE_: which are ours, and which do harm."""

import difflib
import os
import re
from collections.abc import Iterator, MutableMapping
from typing import Any

import typer

PREFIX = "QUIRE_"
# Read elsewhere than by an option: by the kernels, by the SDK and by tests.
_OTHERS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "API_KEY",
        "EMULATED_DEVICE",
        "INSECURE",
        "ISA",
        "KERNELS",
        "LAUNCH_OVERLAP",
        "TLS_DIR",
    )
)
_OF_TESTS = ("QUIRE_TEST_", "QUIRE_PTX_")
# What Kubernetes tells every pod of the services of its namespace, one named quire-router too.
_SERVICE_LINK = re.compile(
    r"QUIRE_\w*_(SERVICE_(HOST|PORT)(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
_LINKED = re.compile(r"(tcp|udp|sctp)://\S+:\d+")


def tidy(command: Any, environment: MutableMapping[str, str] | None = None) -> list[str]:
    """Take what is not meant for options out of the environment; return a line for what is odd.

    Args:
        command: the group of all commands.
        environment: None for that of this process.
    """
    variables = os.environ if environment is None else environment
    known = set(_names(command, "QUIRE"))
    notes = []
    for name in sorted(name for name in variables if name.startswith(PREFIX)):
        if _SERVICE_LINK.fullmatch(name) and (name not in known or _LINKED.match(variables[name])):
            # As an option it would be no number.
            if name in known:
                notes.append(f"{name}: passed over, {variables[name]} is Kubernetes' link")
                del variables[name]
        elif name not in known and name not in _OTHERS and not name.startswith(_OF_TESTS):
            alike = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            meant = f", did you mean {alike[0]}?" if alike else ""
            notes.append(f"{name}: no option reads this variable{meant}")
    return notes


def _names(command: Any, prefix: str) -> Iterator[str]:
    """Yield the variables that the options of a command and of those below it are read from."""
    for parameter in command.params:
        if parameter.envvar:
            named = parameter.envvar
            yield from [named] if isinstance(named, str) else named
        elif getattr(parameter, "allow_from_autoenv", False) and parameter.name:
            yield f"{prefix}_{parameter.name.upper()}"
    yield from (f"{prefix}_{end}" for end in getattr(command, "variables", ()))  # vLLM's options
    for name, each in getattr(command, "commands", {}).items():
        yield from _names(each, f"{prefix}_{name.replace('-', '_').upper()}")


def report(command: Any, *, is_child: bool) -> None:
    """Print a note for each variable that is odd.

    Args:
        command: as of `tidy`.
        is_child: whether the parent of this process has said so already.
    """
    for note in tidy(command):
        if not is_child:
            typer.echo(f"note: {note}", err=True)
