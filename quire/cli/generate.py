"""`quire generate`: one prompt, streamed to the terminal."""

import sys
import time
from typing import Annotated

import typer


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    target: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the router listens.")
    ] = "127.0.0.1:50051",
    model: Annotated[
        str, typer.Option(help="Served model to use.", show_default="the only one")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Keep this share of probability.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens.", show_default="all")
    ] = None,
    min_p: Annotated[float, typer.Option(help="Drop tokens this much less likely.")] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Less of tokens that came already.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Less of tokens, for each time they came.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: less of tokens in prompt or output.")
    ] = 1.0,
    min_tokens: Annotated[int, typer.Option(help="Tokens to generate before any end.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same tokens.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; repeat.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on past the end of text.")] = False,
) -> None:
    """Stream the continuation of a prompt. Text goes to stdout, figures to stderr."""
    from quire.client import Client
    from quire.errors import QuireError
    from quire.outputs import Delta, Finished, Started
    from quire.sampling_params import SamplingParams

    try:
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            min_tokens=min_tokens,
            seed=seed,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
        )
        began = first = time.perf_counter()
        used_seed = 0
        with Client(target) as client:
            for event in client.stream(prompt, params, model=model):
                match event:
                    case Started():
                        used_seed = event.seed
                    case Delta():
                        first = first if first > began else time.perf_counter()
                        sys.stdout.write(event.text)
                        sys.stdout.flush()
                    case Finished():
                        elapsed = time.perf_counter() - began
                        typer.echo()
                        typer.echo(
                            f"[{event.num_output_tokens} tokens, {event.finish_reason.value}, "
                            f"first after {(first - began) * 1e3:.0f} ms, "
                            f"{event.num_output_tokens / elapsed:.1f} tokens/s, seed {used_seed}]",
                            err=True,
                        )
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
