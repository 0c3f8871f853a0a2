"""`quire probe`: ask a service's admin port whether it can take work.

Containers run this every few seconds, so it imports nothing that takes time.
"""

from http.client import HTTPConnection, HTTPException
from typing import Annotated

import typer

from quire.contract.addresses import bare_host


def probe(
    admin_port: Annotated[int, typer.Option(help="Admin port of the service.")] = 9090,
    admin_host: Annotated[str, typer.Option(help="Where that port is.")] = "127.0.0.1",
    path: Annotated[
        str, typer.Option(help="/readyz: can it take work; /livez: do its loops turn.")
    ] = "/readyz",
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the answer.")] = 3.0,
) -> None:
    """Exit with 0 if a service says that it is well, with 1 and the reason if not."""
    connection = HTTPConnection(bare_host(admin_host), admin_port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        reason = response.read(4096).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        typer.echo(f"{admin_host}:{admin_port}{path}: {error or type(error).__name__}", err=True)
        raise typer.Exit(1) from None
    finally:
        connection.close()
    if response.status != 200:
        typer.echo(f"{admin_host}:{admin_port}{path}: {response.status} {reason}", err=True)
        raise typer.Exit(1)
    typer.echo(reason or "ok")
