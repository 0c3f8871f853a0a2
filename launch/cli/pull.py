"""`quire pull`: a model of Hugging Face's hub into a directory, pinned and checked."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME[@REVISION]", help="Model at Hugging Face's hub.")
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if need be.")],
    gguf: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Take this GGUF file, such as '*Q4_K_M.gguf', as weights."
        ),
    ] = None,
) -> None:
    """Download a model: only files that are read here, each checked by its hash.

    The commit is printed. The same command goes on with a download that was interrupted. HF_TOKEN
    gives access to models that need it, HF_ENDPOINT names another hub.
    """
    from quire.contract.errors import QuireError

    try:
        _pull(name, directory, gguf)
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on where this ended", err=True)
        raise typer.Exit(130) from None


def _pull(name: str, directory: Path, gguf: str | None) -> None:
    from launch.extras import require

    require("quire pull", "pull")
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from launch import hub

    model, _, revision = name.partition("@")
    listing = hub.list_files(model, revision or None, gguf)
    columns = (
        *(TextColumn(listing.name), BarColumn(), DownloadColumn(binary_units=True)),
        *(TransferSpeedColumn(), TimeRemainingColumn()),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(each.size for each in listing.files))
        hub.pull(listing, directory, lambda num_bytes: progress.advance(task, num_bytes))
    typer.echo(f"{listing.name}@{listing.commit}")
    typer.echo(f"{len(listing.files)} files in {directory}: quire serve {directory}", err=True)
