"""`quire bench`: servers, and the engine without one, under load."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from launch.bench.arguments import ServeOptions
from launch.cli.options import Values, takes_options

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
    from quire.contract.errors import QuireError

    try:
        require("quire bench serve", "bench")
        if options["plot"] is not None:
            require_plot(options["plot"], "bench")
        from launch.bench.serving import bench_serve

        if not bench_serve(ServeOptions(**options), api_key):
            raise typer.Exit(1)
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
