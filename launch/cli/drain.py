"""`quire drain`: take a cell out of service without an error."""

from typing import Annotated

import typer

from launch.cli.options import Values, takes_options
from quire.contract.service_options import ServiceOptions


@takes_options(ServiceOptions, only=("tls_dir",))
def drain(
    options: Values,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The scheduler of the cell.")],
    move: Annotated[
        bool,
        typer.Option(
            "--move",
            help="Move what runs to other cells at once, as SIGTERM to the scheduler does, and "
            "finish only what no other cell continues with the same tokens.",
        ),
    ] = False,
    timeout_s: Annotated[
        int,
        typer.Option(
            min=0,
            max=86_400,
            help="How long the cell may finish what is not moved, in seconds; the rest then "
            "continues on other cells. 0 is the scheduler's --drain-timeout-s.",
        ),
    ] = 0,
) -> None:
    """Have a cell take nothing new, finish what it has, and end.

    Routers send what comes to other cells, and continue there what is not finished in time.
    """
    import asyncio

    import grpc

    from launch.cluster.drain import drain as drain_cell
    from quire.contract.errors import QuireError
    from quire.rpc import Role, open_tls

    async def run() -> str:
        tls = open_tls(options["tls_dir"], Role.OPERATOR)
        async for at in drain_cell(address, tls, move=move, timeout_s=timeout_s):
            if move:
                typer.echo(f"{at.num_moved} moved, {at.num_left} left, {at.seconds:.1f} s")
        result = f"{at.num_left} requests were left to other cells" if at.num_left else "all done"
        if move:
            result += f"; {at.num_moved} moved, {at.num_finished} finished here, {at.seconds:.1f} s"
        return result

    try:
        result = asyncio.run(run())
    except QuireError as error:
        cause = error.__cause__
        code = f"{cause.code().name}: " if isinstance(cause, grpc.RpcError) else ""
        typer.echo(f"error: {address}: {code}{error.message}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{address} is drained: {result}")
