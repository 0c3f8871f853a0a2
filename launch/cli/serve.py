"""`quire serve`: a whole cluster, on this machine or with workers on others."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from launch.cli.options import ModelArgument, Values, resolve_draft_model, takes_options
from launch.cluster.config import ClusterConfig, LauncherName, embedded_model
from launch.model_source import ModelSource
from quire.contract.options import options_of
from quire.gguf_file import is_model

if TYPE_CHECKING:
    from launch.cluster.supervisor import Cluster


@takes_options(ModelSource, ClusterConfig)
def serve(options: Values, model: ModelArgument = None) -> None:
    """Serve a model: start workers, scheduler and router, keep them up, stop them on Ctrl-C.

    MODEL may also be a name in Hugging Face's local cache, or smollm2 once `quire run` has fetched
    it.
    """
    import asyncio

    from launch import preflight
    from launch.extras import require
    from quire.contract.errors import ConfigError, QuireError
    from quire.observe import log

    log.configure("supervisor", options["log_level"], options["log_format"])
    log.log_uncaught()
    try:
        # Other launchers find workers where they are installed.
        workers = ["worker"] if options["launcher"] == LauncherName.LOCAL else []
        require("quire serve", "router", *workers)
        resolve_draft_model(options)
        if options["launcher"] != LauncherName.LOCAL:
            model = model or None  # manifests give "" where no model is set
        # --api-key takes every word behind it: one of them may be the model, however it is spelled.
        if model is None and len(options["api_key"]) > 1:
            raise ConfigError(
                "model: must be given, before --api-key, where there are several keys, got none"
            )
        source = ModelSource(**{name: options.pop(name) for name in options_of(ModelSource)})
        path = source.path_of(embedded_model() if model is None else model).resolve()
        if model is not None and not is_model(Path(model)):
            # Its directory in the cache has the name of a commit.
            options["served_model_name"] = options["served_model_name"] or model
        config = ClusterConfig(model=path, **options)
        preflight.check(config)
        interrupt = asyncio.run(_serve(config))
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    if interrupt == signal.SIGINT:
        raise KeyboardInterrupt


async def _serve(config: ClusterConfig) -> signal.Signals | None:
    """Run a cluster until it fails or is asked to stop; return what stopped it before it served."""
    import asyncio

    from launch.cli.console import Progress, print_ready
    from launch.cluster.servicer import Control
    from launch.cluster.supervisor import Cluster
    from quire.rpc import stop_signal

    stopped = asyncio.create_task(stop_signal())
    with Progress() as progress:
        cluster = Cluster(config, progress.say)
        starting = asyncio.create_task(cluster.start())
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return stopped.result()
        starting.result()
    control: Control | None = None
    rolling = asyncio.create_task(_roll_when_asked(cluster))
    try:
        control = Control(cluster)
        await print_ready(cluster, await control.start())
        running = asyncio.create_task(cluster.wait())
        await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        if control is not None:
            await control.stop()
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)
        await cluster.stop()
    return None


async def _roll_when_asked(cluster: "Cluster") -> None:
    """Replace every child in turn whenever this process is sent SIGUSR1, until cancelled."""
    import asyncio

    from quire.contract.errors import QuireError

    # Not SIGHUP, which a terminal that is closed sends.
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
    while True:
        await asked.wait()
        asked.clear()
        try:
            await cluster.roll(lambda line: typer.echo(f"roll: {line}"))
        except QuireError as error:
            typer.echo(f"error: {error.message}", err=True)
        except Exception as error:  # the next signal is to find somebody who waits for it
            typer.echo(f"error: roll: {error!r}", err=True)
