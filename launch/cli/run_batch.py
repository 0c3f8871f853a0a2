"""`quire run-batch`: a file of requests, answered offline."""

from pathlib import Path
from typing import Annotated

import typer

from launch.cli.options import Values, resolve_draft_model, takes_options
from launch.cluster.config import ClusterConfig
from quire.contract.engine_options import DeviceOptions, EngineOptions
from quire.contract.options import options_of

_TAKEN = (*options_of(EngineOptions), *options_of(DeviceOptions), "tensor_parallel_size")


@takes_options(ClusterConfig, only=[name for name in _TAKEN if name != "seed"])
def run_batch(
    options: Values,
    input_file: Annotated[
        Path,
        typer.Option("--input-file", "-i", metavar="FILE", help="Requests, a JSON object a line."),
    ],
    output_file: Annotated[
        Path,
        typer.Option("--output-file", "-o", metavar="FILE", help="Where answers are appended."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Hugging Face model directory, GGUF file, or name in Hugging Face's local cache.",
            show_default="the embedded demo model",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="http://HOST:PORT of a server that runs, instead of starting one.",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["OPENAI_API_KEY", "QUIRE_API_KEY"],
            metavar="KEY",
            help="Key to call --url with. Others on this machine may see it here; not in the "
            "environment.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[str, typer.Option(metavar="INTEGER", help="Requests at once.")] = "256",
    seed: Annotated[
        str, typer.Option(metavar="INTEGER", help="Of requests that bring none.")
    ] = "0",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew where the output is there already.")
    ] = False,
) -> None:
    """Answer a file of requests in OpenAI's batch format: chats, completions, embeddings.

    Lines whose answers are there already are left out: a batch that was stopped, or killed, goes on
    when the same command is run again. Ends with status 1 if a request failed.
    """
    import sys

    from launch.batch.run import run
    from launch.extras import require
    from quire.contract.errors import ConfigError, QuireError
    from quire.observe import log

    log.configure("batch", "warning")
    try:
        require("quire run-batch", "router", *(["worker"] if url is None else []))
        numbers = {}
        for name, text in (("concurrency", concurrency), ("seed", seed)):
            if not text.isdecimal() or (name == "concurrency" and not int(text)):
                raise ConfigError(f"{name}: must be a positive integer, got {text}")
            numbers[name] = int(text)
        resolve_draft_model(options)
        num_failed = run(
            *(input_file, output_file, model, options),
            url=url,
            api_key=api_key or "",
            num_at_once=numbers["concurrency"],
            seed=numbers["seed"],
            overwrite=overwrite,
        )
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("stopped: run the same command to go on", err=True)
        raise typer.Exit(130) from None
    if num_failed:
        typer.echo(f"{num_failed} requests failed; their lines have an error", err=True)
        sys.exit(1)
