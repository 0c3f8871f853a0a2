"""The `quire` command. Subcommands import what they need when they run, so that --help is quick."""

import typer

from launch.cli import (
    bench,
    certs,
    doctor,
    drain,
    embed,
    generate,
    identify,
    keys,
    probe,
    pull,
    replay,
    resize,
    roll,
    run,
    run_batch,
    serve,
    services,
    simulate,
    size,
    torture,
)
from launch.cli.help import QuireCommand
from launch.cli.usage_errors import QuireGroup
from launch.cli.vllm_command import VllmCommand
from quire.version import __version__

_SERVE = (
    "Options of `vllm serve` are taken, too: with their meaning, or with a line that says why not. "
    "Every option is also read from the environment: --max-num-seqs from QUIRE_SERVE_MAX_NUM_SEQS."
)

app = typer.Typer(
    name="quire",
    cls=QuireGroup,
    help="An LLM serving cluster: router, scheduler and paged-attention workers over gRPC.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # Every option can come from the environment: QUIRE_SERVE_MAX_NUM_SEQS=64.
        "auto_envvar_prefix": "QUIRE",
    },
)
app.command("serve", cls=VllmCommand, epilog=_SERVE)(serve.serve)
app.command("run", cls=QuireCommand)(run.run)
app.command("run-batch", cls=VllmCommand)(run_batch.run_batch)
app.command("generate", cls=QuireCommand)(generate.generate)
app.command("embed", cls=QuireCommand)(embed.embed)
app.command("router", cls=QuireCommand)(services.router)
app.command("scheduler", cls=QuireCommand)(services.scheduler)
app.command("worker", cls=QuireCommand)(services.worker)
app.command("drain", cls=QuireCommand)(drain.drain)
app.command("resize", cls=QuireCommand)(resize.resize)
app.command("roll", cls=QuireCommand)(roll.roll)
app.command("certs", cls=QuireCommand)(certs.certs)
app.add_typer(keys.app, name="keys")
app.command("pull", cls=QuireCommand)(pull.pull)
app.command("probe", cls=QuireCommand)(probe.probe)
app.command("replay", cls=QuireCommand)(replay.replay)
app.command("simulate", cls=QuireCommand)(simulate.simulate)
app.command("torture", cls=QuireCommand)(torture.torture)
app.add_typer(bench.app, name="bench")
app.command("size", cls=VllmCommand)(size.size)
app.command("doctor", cls=QuireCommand)(doctor.doctor)
app.command("identify", cls=QuireCommand)(identify.identify)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"quire {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        allow_from_autoenv=False,  # QUIRE_VERSION is a fine name for a variable of one's own
        help="Print the version.",
    ),
) -> None:
    """Take the options that come before any subcommand."""


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
