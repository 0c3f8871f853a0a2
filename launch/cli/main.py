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
    serve,
    services,
    simulate,
    torture,
)
from launch.cli.usage_errors import QuireGroup
from launch.cli.vllm_command import VllmCommand
from quire.version import __version__

app = typer.Typer(
    name="quire",
    cls=QuireGroup,
    help="An LLM serving cluster: router, scheduler and paged-attention workers over gRPC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # Every option can come from the environment: QUIRE_SERVE_MAX_NUM_SEQS=64.
        "auto_envvar_prefix": "QUIRE",
    },
)
app.command("serve", cls=VllmCommand)(serve.serve)
app.command("run")(run.run)
app.command("generate")(generate.generate)
app.command("embed")(embed.embed)
app.command("router")(services.router)
app.command("scheduler")(services.scheduler)
app.command("worker")(services.worker)
app.command("drain")(drain.drain)
app.command("resize")(resize.resize)
app.command("roll")(roll.roll)
app.command("certs")(certs.certs)
app.add_typer(keys.app, name="keys")
app.command("pull")(pull.pull)
app.command("probe")(probe.probe)
app.command("replay")(replay.replay)
app.command("simulate")(simulate.simulate)
app.command("torture")(torture.torture)
app.add_typer(bench.app, name="bench")
app.command("doctor")(doctor.doctor)
app.command("identify")(identify.identify)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"quire {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Take the options that come before any subcommand."""


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
