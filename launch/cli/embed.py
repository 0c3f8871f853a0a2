"""`quire embed`: the vectors of texts, a line of JSON for each."""

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from launch.cli.options import (
    ApiKey,
    CacheSalt,
    Insecure,
    Priority,
    RouterName,
    Routers,
    ServedModel,
    Values,
    takes_options,
)
from quire.contract.options import Options, option, same_option
from quire.contract.service_options import ServiceOptions


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    """How vectors are made, and where the certificates are."""

    normalize: bool = option(True, "Scale vectors to length 1.")
    truncate_prompt_tokens: int | None = option(
        None, "Use only the last so many tokens of each text; -1 for as many as the model takes."
    )
    dimensions: int | None = option(
        None, "Only so many elements, where the model was trained for that."
    )
    tls_dir: str | None = same_option(ServiceOptions, "tls_dir")


@takes_options(EmbedOptions)
def embed(
    options: Values,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts.")],
    target: Routers = "127.0.0.1:50051",
    api_key: ApiKey = None,
    insecure: Insecure = False,
    model: ServedModel = "",
    priority: Priority = 0,
    cache_salt: CacheSalt = "",
    server_name: RouterName = None,
) -> None:
    """Print the vector of each text: the hidden state of its last token, as a JSON array."""
    from quire.contract.errors import QuireError
    from quire.sdk.client import Client

    try:
        tls_dir = options.pop("tls_dir")
        with Client(
            target, tls_dir=tls_dir, server_name=server_name, api_key=api_key, insecure=insecure
        ) as client:
            found = client.embed(
                texts, model=model, priority=priority, cache_salt=cache_salt, **options
            )
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    for vector in found.vectors:
        typer.echo(json.dumps(vector.tolist()))
