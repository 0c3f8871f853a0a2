"""`quire drain`: take a cell out of service without an error."""

from typing import Annotated

import typer

from launch.cli.options import Values, takes_options
from quire.contract.service_options import ServiceOptions


@takes_options(ServiceOptions, only=("tls_dir",))
def drain(
    options: Values,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The scheduler of the cell.")],
) -> None:
    """Have a cell take nothing new, finish what it has, and end; as SIGTERM to its scheduler does.

    Routers send what comes to other cells, and continue there what is not finished in time.
    """
    import asyncio

    import grpc

    from quire.contract.errors import QuireError
    from quire.rpc import Role, open_channel, open_tls
    from quire.security.handshake import explain
    from quire.v1 import scheduler_pb2, scheduler_pb2_grpc

    async def run() -> int:
        tls = open_tls(options["tls_dir"], Role.OPERATOR)
        async with open_channel(address, tls, Role.SCHEDULER) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            response = await stub.Drain(scheduler_pb2.DrainRequest())
            return int(response.num_unfinished)

    try:
        num_unfinished = asyncio.run(run())
    except grpc.aio.AioRpcError as error:
        details = explain(error.details() or "")
        typer.echo(f"error: {address}: {error.code().name}: {details}", err=True)
        raise typer.Exit(1) from None
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    left = f"{num_unfinished} requests were left to other cells" if num_unfinished else "all done"
    typer.echo(f"{address} is drained: {left}")
