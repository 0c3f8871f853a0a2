"""`quire torture`: whether a server gives the same answers whatever happens around them."""

from pathlib import Path
from typing import Annotated

import typer

from launch.cli.options import ApiKey

# 1 is for answers that changed and processes that were not killed.
UNASKED_STATUS = 2


def torture(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="Of any server with OpenAI's API, /v1 or without."),
    ],
    api: Annotated[
        str, typer.Option(metavar="completions|chat", help="How questions are put.")
    ] = "completions",
    model: Annotated[
        str, typer.Option(help="Model to ask.", show_default="the first that is listed")
    ] = "",
    questions: Annotated[int, typer.Option(help="Questions of each scenario.")] = 24,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 64,
    max_model_len: Annotated[
        int,
        typer.Option(help="Most tokens of prompt and answer.", show_default="as listed, else 1024"),
    ] = 0,
    logprobs: Annotated[
        bool, typer.Option(help="Compare log-probabilities too, where there are any.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the questions and of all chance.")] = 0,
    timeout_s: Annotated[
        float, typer.Option(help="Longest that an answer may take, with all its breaks.")
    ] = 120.0,
    pressure_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of long requests that run at once, to overflow caches.",
            show_default="doubled until requests queue, up to 128 requests",
        ),
    ] = 0,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this one beside 'alone'; repeat. 'in company', 'warm prefix', 'pressure', "
            "'clients that drop', 'drop and come back', 'kill'.",
            show_default="all",
        ),
    ] = None,
    kill: Annotated[
        list[int] | None,
        typer.Option(
            metavar="PID",
            allow_from_autoenv=False,
            help="Kill this process of the server while streams run, once; repeat.",
            show_default=False,
        ),
    ] = None,
    signal: Annotated[str, typer.Option(help="Signal that kills.")] = "KILL",
    kill_every_s: Annotated[float, typer.Option(help="Least time between two kills.")] = 2.0,
    api_key: ApiKey = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here.", show_default=False)
    ] = None,
) -> None:
    """Ask a server the same alone, in company and in trouble, and report which answers changed.

    Everything is asked alone first. Then all at once, after prompts that begin alike, among so many
    long requests that caches overflow, while other clients disconnect and, with --kill, while
    processes of the server die. Only what is named is killed, and nothing is started again.

    Exits with 0 where every answer was the same, with 1 where one changed or did not come or
    a process of --kill was not killed, and with 2 where the server could not be asked.
    """
    from launch.extras import require
    from quire.contract.errors import QuireError

    try:
        require("quire torture", "bench")
        import asyncio
        from contextlib import nullcontext

        from launch.torture.processes import Victims, signal_named
        from launch.torture.report import ProgressBar, print_report, write_json
        from launch.torture.server import api_named
        from launch.torture.suite import Settings, run

        settings = Settings(
            url=url,
            api=api_named(api),
            model=model,
            api_key=api_key,
            num_questions=questions,
            max_tokens=max_tokens,
            max_model_len=max_model_len,
            seed=seed,
            timeout_s=timeout_s,
            pressure_tokens=pressure_tokens,
            kill_every_s=kill_every_s,
            with_logprobs=logprobs,
            scenarios=tuple(scenario or ()),
        )
        victims = Victims(kill, signal_named(signal)) if kill else nullcontext()
        with victims as named, ProgressBar() as progress:
            report = asyncio.run(run(settings, named, progress))
        print_report(report)
        if json_file is not None:
            write_json(json_file, report)
    except (QuireError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(UNASKED_STATUS) from None
    if not report.is_passed:
        raise typer.Exit(1)
