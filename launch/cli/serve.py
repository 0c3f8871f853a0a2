"""`quire serve`: a whole cluster, on this machine or with workers on others."""

import typer

from launch.cli.options import ModelArgument, Values, model_path, resolve_draft_model, takes_options
from launch.cluster.config import ClusterConfig


@takes_options(ClusterConfig)
def serve(options: Values, model: ModelArgument = None) -> None:
    """Serve a model: start workers, scheduler and router, keep them up, stop them on Ctrl-C."""
    import asyncio

    from quire.contract.errors import QuireError
    from quire.observe import log

    log.configure("supervisor", options["log_level"])
    try:
        resolve_draft_model(options)
        config = ClusterConfig(model=model_path(model), **options)
        asyncio.run(_serve(config))
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None


async def _serve(config: ClusterConfig) -> None:
    """Run a cluster until it fails or is interrupted."""
    import asyncio

    from launch.cli.console import Progress, print_ready
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
            return
        starting.result()
    try:
        await print_ready(cluster)
        running = asyncio.create_task(cluster.wait())
        await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        await cluster.stop()
