"""`quire generate`: one prompt, streamed to the terminal."""

from enum import StrEnum
from typing import Annotated

import typer

from launch.cli.options import ApiKey, Values, takes_options
from launch.cli.stream_printer import StreamPrinter
from quire.contract.service_options import ServiceOptions


class EarlyStopping(StrEnum):
    """When a beam search ends that has found as many texts as it has beams."""

    TRUE = "true"
    FALSE = "false"
    NEVER = "never"

    @property
    def setting(self) -> bool | str:
        """The value of the sampling parameter."""
        return {"true": True, "false": False}.get(self.value, self.value)


@takes_options(ServiceOptions, only=("tls_dir",))
def generate(
    options: Values,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    target: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the router listens.")
    ] = "127.0.0.1:50051",
    api_key: ApiKey = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="QUIRE_INSECURE",
            help="Let the key go over a network in the clear.",
        ),
    ] = False,
    model: Annotated[
        str, typer.Option(help="Served model to use.", show_default="the only one")
    ] = "",
    n: Annotated[int, typer.Option("-n", "--n", help="Outputs to return.")] = 1,
    best_of: Annotated[
        int | None, typer.Option(help="Outputs to sample, the best n returned.", show_default="n")
    ] = None,
    use_beam_search: Annotated[
        bool, typer.Option("--use-beam-search", help="Search with best_of beams.")
    ] = False,
    length_penalty: Annotated[float, typer.Option(help="Above 1: longer beams.")] = 1.0,
    early_stopping: Annotated[
        EarlyStopping, typer.Option(help="End a search: with enough texts, or none better.")
    ] = EarlyStopping.FALSE,
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
    stop_token_ids: Annotated[
        list[int] | None, typer.Option("--stop-token-id", help="End at this token; repeat.")
    ] = None,
    include_stop_str_in_output: Annotated[
        bool, typer.Option("--include-stop-str-in-output", help="Show the stop string too.")
    ] = False,
    bad_words: Annotated[
        list[str] | None, typer.Option("--bad-word", help="Text never to generate; repeat.")
    ] = None,
    allowed_token_ids: Annotated[
        list[int] | None,
        typer.Option("--allowed-token-id", help="Generate only this token; repeat."),
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:BIAS", help="Add to a token's logit; repeat."),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Show log-probabilities, of so many likeliest tokens too."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="The same for the tokens of the prompt.")
    ] = None,
    truncate_prompt_tokens: Annotated[
        int | None, typer.Option(help="Use only the last so many tokens of the prompt.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of text.")
    ] = False,
    skip_special_tokens: Annotated[bool, typer.Option(help="Leave them out of the text.")] = True,
    spaces_between_special_tokens: Annotated[
        bool, typer.Option(help="Where the tokenizer puts any.")
    ] = True,
    priority: Annotated[int, typer.Option(help="Smaller goes first, -100 to 100.")] = 0,
    cache_salt: Annotated[
        str, typer.Option(help="Share cached prefixes within this salt only.")
    ] = "",
    time_breakdown: Annotated[
        bool, typer.Option("--time-breakdown", help="Print where the time went, in the end.")
    ] = False,
    server_name: Annotated[
        str | None,
        typer.Option(
            help="Name that the router's certificate must have.", show_default="quire-router"
        ),
    ] = None,
) -> None:
    """Stream the continuation of a prompt. Text goes to stdout, figures to stderr."""
    from quire.contract.errors import QuireError
    from quire.contract.sampling_params import SamplingParams
    from quire.sdk.client import Client

    try:
        params = SamplingParams(
            n=n,
            best_of=best_of,
            use_beam_search=use_beam_search,
            length_penalty=length_penalty,
            early_stopping=early_stopping.setting,
            # A search needs 0, which is not the default of anything else.
            temperature=0.0 if use_beam_search else temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            logit_bias=dict(map(_bias, logit_bias or ())),
            allowed_token_ids=tuple(allowed_token_ids or ()),
            bad_words=tuple(bad_words or ()),
            min_tokens=min_tokens,
            seed=seed,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            stop=tuple(stop or ()),
            stop_token_ids=tuple(stop_token_ids or ()),
            include_stop_str_in_output=include_stop_str_in_output,
            ignore_eos=ignore_eos,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        with Client(
            target, **options, server_name=server_name, api_key=api_key, insecure=insecure
        ) as client:
            printer = StreamPrinter(params)
            for event in client.stream(
                prompt,
                params,
                model=model,
                priority=priority,
                cache_salt=cache_salt,
                include_time_breakdown=time_breakdown,
            ):
                printer.show(event)
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition(":")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not ID:BIAS", param_hint="--logit-bias") from None
