"""`quire roll`: replace every process of `quire serve` under load, without an error."""

from typing import Annotated

import typer

from launch.cli.options import Values, takes_options
from quire.contract.service_options import ServiceOptions


@takes_options(ServiceOptions, only=("tls_dir",))
def roll(
    options: Values,
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="The control port of `quire serve`.")
    ],
    timeout_s: Annotated[
        int,
        typer.Option(
            min=1,
            max=86_400,
            help="How long what only the old code can finish may take, in seconds.",
        ),
    ] = 300,
) -> None:
    """Have a cluster go on with the code that is installed now, process by process.

    Each is ready before the next is replaced. Streams pause and go on with the same tokens. Where
    the new code computes other tokens (`quire identify`), what runs is finished first, and new
    requests wait. If the new code does not start, what was not replaced yet keeps running.
    """
    import asyncio

    from launch.cluster.resize import ask_for_roll
    from quire.contract.errors import QuireError
    from quire.rpc import Role, open_tls

    async def run() -> None:
        tls = open_tls(options["tls_dir"], Role.OPERATOR)
        await ask_for_roll(address, timeout_s, tls, typer.echo)

    try:
        asyncio.run(run())
    except QuireError as error:
        typer.echo(f"error: {address}: {error.message}", err=True)
        raise typer.Exit(1) from None
