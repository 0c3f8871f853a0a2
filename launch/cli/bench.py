"""`quire bench`: servers, and the engine without one, under load."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from launch.bench.offline_options import LatencyOptions, ThroughputOptions
from launch.bench.serve_options import ServeOptions
from launch.cli.options import Values, resolve_draft_model, takes_options
from launch.cli.vllm_command import VllmCommand

app = typer.Typer(
    help="Measure throughput and latency, with the options and results of `vllm bench`.",
    no_args_is_help=True,
)


class _SeveralValues(TyperCommand):
    """Takes several values behind one flag, as `vllm bench` does: --goodput ttft:200 tpot:50."""

    flags = ("--goodput", "--metadata", "--header")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read arguments, with such a flag before each of its values."""
        spelled_out: list[str] = []
        flag = None
        for each in args:
            if each.startswith("-"):
                flag = each if each in self.flags else None
            elif flag is not None and spelled_out[-1] != flag:
                spelled_out.append(flag)
            spelled_out.append(each)
        return super().parse_args(ctx, spelled_out)


@app.command("serve", cls=_SeveralValues)
@takes_options(ServeOptions)
def serve(
    options: Values,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["OPENAI_API_KEY", "QUIRE_API_KEY"],
            metavar="KEY",
            help="Key to call with. Others on this machine may see it here; not in the "
            "environment.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure a server: any with OpenAI's API, or Quire's gRPC.

    Ends with status 1 if every request failed.
    """
    from launch.extras import require, require_plot

    with _reported():
        require("quire bench serve", "bench")
        if options["plot"] is not None:
            require_plot(options["plot"], "bench")
        from launch.bench.serving import bench_serve

        if not bench_serve(ServeOptions(**options), api_key):
            raise typer.Exit(1)


@app.command("throughput", cls=VllmCommand)
@takes_options(ThroughputOptions)
def throughput(options: Values) -> None:
    """Start a cluster, and measure how fast it answers a list of prompts."""
    from launch.extras import require

    with _reported():
        require("quire bench throughput", "router", "worker", bring="all")
        from launch.bench.offline import bench_throughput

        resolve_draft_model(options)
        bench_throughput(ThroughputOptions(**options))


@app.command("latency", cls=VllmCommand)
@takes_options(LatencyOptions)
def latency(options: Values) -> None:
    """Start a cluster, and measure how long it takes to answer one batch of prompts."""
    from launch.extras import require

    with _reported():
        require("quire bench latency", "router", "worker", bring="all")
        from launch.bench.offline import bench_latency

        resolve_draft_model(options)
        bench_latency(LatencyOptions(**options))


@contextmanager
def _reported() -> Iterator[None]:
    """End with a line for what is expected to go wrong."""
    from quire.contract.errors import QuireError

    try:
        yield
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
