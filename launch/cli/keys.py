"""`quire keys`: the file of API keys that `quire router --api-keys` reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    Path,
    typer.Option("--file", envvar="QUIRE_API_KEYS", metavar="FILE", help="The file of keys."),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose key: 1 to 63 of a-z, 0-9, '.', '_' and '-'.")
]
Quota = Annotated[
    int | None, typer.Option(help="At all cells of a model together.", show_default="no quota")
]

app = typer.Typer(
    help="Make, list and revoke API keys. Routers read the file again when it changes.",
    no_args_is_help=True,
)


@app.command("add")
def add(
    name: Name,
    file: File,
    days: Annotated[
        float | None, typer.Option(min=0, help="How long it is valid.", show_default="for ever")
    ] = None,
    weight: Annotated[
        float, typer.Option(help="Of its share where the requests of several keys wait.")
    ] = 1.0,
    min_priority: Annotated[
        int, typer.Option(help="Its requests go before others at most as those of this priority.")
    ] = -100,
    max_requests_per_minute: Quota = None,
    max_tokens_per_minute: Quota = None,
    max_concurrent: Quota = None,
) -> None:
    """Make a key and print it: it is shown this once, the file holds its SHA-256 alone."""
    from quire.contract.errors import ConfigError
    from quire.contract.quotas import Quotas
    from quire.security.api_key_file import ApiKey, digest, editing
    from quire.security.api_keys import generate_key, utc_now

    key = generate_key()
    now = utc_now()
    with _one_line_errors():
        try:
            expires = None if days is None else now + timedelta(days=days)
        except OverflowError:
            raise ConfigError(f"--days: no such date, {days:g} days from now") from None
        quotas = Quotas(max_requests_per_minute, max_tokens_per_minute, max_concurrent)
        with editing(file) as keys:
            if any(each.name == name for each in keys):
                raise ConfigError(
                    f"{file} has a key of the name {name}; revoke it first, or take another name "
                    "to have two while callers change over"
                )
            keys.append(ApiKey(name, digest(key), now, expires, weight, min_priority, quotas))
    typer.echo(key)


@app.command("list")
def show(file: File) -> None:
    """Show the keys of a file, by name."""
    from rich.console import Console
    from rich.table import Table

    from quire.security.api_key_file import format_time, read_keys
    from quire.security.api_keys import utc_now

    with _one_line_errors():
        keys = read_keys(file)
    quotas = "requests/min", "tokens/min", "concurrent"
    table = Table("name", "created", "expires", "weight", "min priority", *quotas, "sha256")
    now = utc_now()
    for key in keys:
        expires = "never" if key.expires is None else format_time(key.expires)
        ended = " (expired)" if key.is_expired(now) else ""
        limits = (str(limit or "") for limit in astuple(key.quotas))
        rights = f"{key.weight:g}", str(key.min_priority), *limits
        made = format_time(key.created)
        table.add_row(key.name, made, expires + ended, *rights, key.sha256.hex()[:12])
    Console().print(table)


@app.command("revoke")
def revoke(name: Name, file: File) -> None:
    """Take a key out of a file: calls that begin from now on are refused, running ones finish."""
    from quire.contract.errors import ConfigError
    from quire.security.api_key_file import editing

    with _one_line_errors(), editing(file) as keys:
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise ConfigError(f"{file} has no key of the name {name}")
        keys[:] = left
    typer.echo(f"{name} is revoked")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from quire.contract.errors import QuireError

    try:
        yield
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
