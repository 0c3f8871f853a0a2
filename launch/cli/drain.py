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
) -> None:
    """Have a cell take nothing new, finish what it has, and end.

    Routers send what comes to other cells, and continue there what is not finished in time.
    """
    import asyncio
    import time

    import grpc

    from quire.contract.errors import QuireError
    from quire.rpc import Role, open_channel, open_tls
    from quire.security.handshake import explain
    from quire.v1 import scheduler_pb2, scheduler_pb2_grpc

    async def run() -> str:
        tls = open_tls(options["tls_dir"], Role.OPERATOR)
        async with open_channel(address, tls, Role.SCHEDULER) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            began, total = time.monotonic(), None
            async for at in stub.Drain(scheduler_pb2.DrainRequest(move=move)):
                if total is None:
                    total = at.num_unfinished + at.num_moved
                seconds = time.monotonic() - began
                progress = f"{at.num_moved} moved, {at.num_unfinished} left, {seconds:.1f} s"
                if move:
                    typer.echo(progress)
            left = at.num_unfinished
            result = f"{left} requests were left to other cells" if left else "all done"
            if move:
                finished = total - at.num_moved - left
                result += f"; {at.num_moved} moved, {finished} finished here, {seconds:.1f} s"
            return result

    try:
        result = asyncio.run(run())
    except grpc.aio.AioRpcError as error:
        details = explain(error.details() or "")
        typer.echo(f"error: {address}: {error.code().name}: {details}", err=True)
        raise typer.Exit(1) from None
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{address} is drained: {result}")
