"""`quire generate`: one prompt, streamed to the terminal."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from launch.cli.stream_printer import StreamPrinter
from quire.contract.options import Options, option, same_option
from quire.contract.service_options import ServiceOptions

if TYPE_CHECKING:
    from quire.contract.structured_outputs import StructuredOutputsParams

EARLY_STOPPING: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Options):
    """Sampling parameters as options, and where the certificates are."""

    n: int = option(1, "Outputs to return.", flags=("-n", "--n"))
    best_of: int | None = option(None, "Outputs to sample, the best n returned.", shown_default="n")
    use_beam_search: bool = option(False, "Search with best_of beams.")
    length_penalty: float = option(1.0, "Above 1: longer beams.")
    early_stopping: str = option(
        "false", "End a search: with enough texts, or none better.", choices=EARLY_STOPPING
    )
    max_tokens: int = option(128, "Most tokens to generate.")
    temperature: float = option(1.0, "0 takes the likeliest token.")
    top_p: float = option(1.0, "Keep this share of probability.")
    top_k: int | None = option(None, "Keep the k likeliest tokens.", shown_default="all")
    min_p: float = option(0.0, "Drop tokens this much less likely.")
    presence_penalty: float = option(0.0, "Less of tokens that came already.")
    frequency_penalty: float = option(0.0, "Less of tokens, for each time they came.")
    repetition_penalty: float = option(1.0, "Above 1: less of tokens in prompt or output.")
    min_tokens: int = option(0, "Tokens to generate before any end.")
    seed: int | None = option(None, "Same seed, same tokens.")
    stop: tuple[str, ...] = option((), "End the text before this string; repeat.")
    stop_token_ids: tuple[int, ...] = option(
        (), "End at this token; repeat.", flags=("--stop-token-id",)
    )
    include_stop_str_in_output: bool = option(False, "Show the stop string or stop token too.")
    bad_words: tuple[str, ...] = option(
        (), "Text never to generate; repeat.", flags=("--bad-word",)
    )
    allowed_token_ids: tuple[int, ...] = option(
        (), "Generate only this token; repeat.", flags=("--allowed-token-id",)
    )
    logit_bias: tuple[str, ...] = option((), "Add to a token's logit; repeat.", metavar="ID:BIAS")
    logprobs: int | None = option(None, "Show log-probabilities, of so many likeliest tokens too.")
    prompt_logprobs: int | None = option(None, "The same for the tokens of the prompt.")
    truncate_prompt_tokens: int | None = option(
        None, "Use only the last so many tokens of the prompt."
    )
    json_schema: str | None = option(
        None, "Generate JSON of this schema; @FILE reads it.", metavar="SCHEMA"
    )
    json_object: bool = option(False, "Generate a JSON object.")
    regex: str | None = option(None, "Generate what this matches.")
    choice: tuple[str, ...] = option((), "Generate this text; repeat.")
    grammar: str | None = option(
        None, "Generate what this Lark grammar derives; @FILE reads it.", metavar="GRAMMAR"
    )
    ignore_eos: bool = option(False, "Go on past the end of text.")
    skip_special_tokens: bool = option(True, "Leave them out of the text.")
    spaces_between_special_tokens: bool = option(True, "Where the tokenizer puts any.")
    tls_dir: str | None = same_option(ServiceOptions, "tls_dir")


@takes_options(GenerateOptions)
def generate(
    options: Values,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    target: Routers = "127.0.0.1:50051",
    api_key: ApiKey = None,
    insecure: Insecure = False,
    model: ServedModel = "",
    priority: Priority = 0,
    cache_salt: CacheSalt = "",
    time_breakdown: Annotated[
        bool, typer.Option("--time-breakdown", help="Print where the time went, in the end.")
    ] = False,
    resume_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="How long to resume a stream that broke; 0: not."
        ),
    ] = 60.0,
    server_name: RouterName = None,
) -> None:
    """Stream the continuation of a prompt. Text goes to stdout, figures to stderr."""
    from quire.contract.errors import QuireError
    from quire.contract.sampling_params import SamplingParams
    from quire.sdk.client import Client

    try:
        tls_dir = options.pop("tls_dir")
        options["early_stopping"] = EARLY_STOPPING[options["early_stopping"]]
        options["logit_bias"] = dict(map(_bias, options["logit_bias"]))
        if options["use_beam_search"]:
            # A search needs 0, which is not the default of anything else.
            options["temperature"] = 0.0
        grammar = _grammar(options)
        params = SamplingParams(**options, structured_outputs=grammar)
        with Client(
            target,
            tls_dir=tls_dir,
            server_name=server_name,
            api_key=api_key,
            insecure=insecure,
            resume_timeout=resume_timeout,
        ) as client:
            printer = StreamPrinter(params)
            stream = client.stream(
                prompt,
                params,
                model=model,
                priority=priority,
                cache_salt=cache_salt,
                include_time_breakdown=time_breakdown,
            )
            with closing(stream):  # also where Ctrl-C comes while an event is shown
                for event in stream:
                    printer.show(event)
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None


def _grammar(options: Values) -> "StructuredOutputsParams | None":
    """Return the grammar that options give, None for none.

    Mutates: options, from which they are taken.

    Raises:
        InvalidRequestError: they give several, or one out of bounds.
    """
    from quire.contract.structured_outputs import StructuredOutputsParams

    given = {
        "json": _text_or_file("--json-schema", options.pop("json_schema")),
        "json_object": options.pop("json_object"),
        "regex": options.pop("regex"),
        "choice": options.pop("choice"),
        "grammar": _text_or_file("--grammar", options.pop("grammar")),
    }
    is_given = any(value not in (None, False, ()) for value in given.values())
    return StructuredOutputsParams(**given) if is_given else None


def _text_or_file(option: str, text: str | None) -> str | None:
    """Return an option's text, or what is in the file that it names."""
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"cannot read {text[1:]}: {error}", param_hint=option) from None


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition(":")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not ID:BIAS", param_hint="--logit-bias") from None
