"""`quire resize`: change the number of workers of a cell that serves, without an error."""

from typing import Annotated

import typer

from launch.cli.options import Values, takes_options
from quire.contract.service_options import ServiceOptions


@takes_options(ServiceOptions, only=("tls_dir",))
def resize(
    options: Values,
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="The control port of `quire serve`; with --worker a scheduler.",
        ),
    ],
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            min=1,
            help="Workers that are to share the model. `quire serve` starts them.",
        ),
    ] = None,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="HOST:PORT",
            help="A new worker, which runs already, in order of rank; repeat.",
        ),
    ] = None,
    timeout_s: Annotated[
        int, typer.Option(min=1, max=86_400, help="Until the new workers must serve, in seconds.")
    ] = 300,
) -> None:
    """Have other workers load a cell's model beside those in use, and take over between two steps.

    What runs goes on with the same tokens. If the new workers cannot take over, the old ones go on.
    """
    import asyncio
    import time

    from launch.cluster.resize import ask_cluster, ask_scheduler
    from quire.contract.errors import QuireError
    from quire.contract.resizing import ResizeProgress
    from quire.rpc import Role, open_tls

    if (tensor_parallel_size is None) == (not workers):
        got = "both" if workers else "neither"
        raise typer.BadParameter(
            f"must be given, or --worker, got {got}", param_hint="tensor_parallel_size"
        )
    began = time.monotonic()

    def say(line: str) -> None:
        typer.echo(f"[{time.monotonic() - began:5.1f} s] {line}")

    async def run() -> ResizeProgress:
        tls = open_tls(options["tls_dir"], Role.OPERATOR)
        if workers:
            return await ask_scheduler(address, tuple(workers), timeout_s, tls, say)
        assert tensor_parallel_size is not None, "checked above"
        return await ask_cluster(address, tensor_parallel_size, timeout_s, tls, say)

    try:
        result = asyncio.run(run())
    except QuireError as error:
        typer.echo(f"error: {address}: {error.message}", err=True)
        raise typer.Exit(1) from None
    size = tensor_parallel_size or len(workers or ())
    typer.echo(
        f"tensor-parallel size is {size}: {result.num_moved} requests moved, largest gap "
        f"{result.gap_s:.2f} s"
    )
