"""`quire replay`: runs again what a scheduler recorded, and finds the first value that differs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launch.cli.options import Values, takes_options
from quire.contract.engine_options import DeviceOptions
from worker_svc.isa import check_isa

if TYPE_CHECKING:
    from launch.replay.epochs import RecordedEpoch

# 1 is for a difference.
UNUSABLE_STATUS = 2


@takes_options(DeviceOptions)
def replay(
    options: Values,
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="As given to --record.", exists=True)
    ],
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Where the model is now.", show_default="as recorded"),
    ] = "",
    from_epoch: Annotated[int, typer.Option(help="First epoch to replay.", min=0)] = 0,
    orders: Annotated[
        bool, typer.Option("--orders", help="Check the orders alone; nothing is computed.")
    ] = False,
) -> None:
    """Run recorded steps again on one worker, and compare every token with the recorded one.

    Exits with 0 where all are the same, with 1 at the first step and sequence that differ, and
    with 2 where the recording cannot be replayed.
    """
    import os

    # Read when torch is imported, as for `quire worker`.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from launch.extras import require
    from launch.replay.epochs import read_epochs
    from quire.contract.errors import QuireError
    from quire.observe import log

    log.configure("replay", "warning")
    try:
        require("quire replay", "worker")
        check_isa()
        DeviceOptions(**options)  # which checks them
        epochs = read_epochs(directory, from_epoch)
        if orders:
            difference, num_steps = _check_orders(epochs)
        else:
            difference, num_steps = _replay(epochs, model, options)
    except (QuireError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(UNUSABLE_STATUS) from None
    if difference:
        typer.echo(f"{'wrong' if orders else 'differs'}: {difference}")
        raise typer.Exit(1)
    if not num_steps:
        typer.echo("error: no step could be replayed", err=True)
        raise typer.Exit(UNUSABLE_STATUS)
    typer.echo(f"{'in order' if orders else 'same'}: {num_steps} steps")


def _report(line: str) -> None:
    typer.echo(line, err=True)


def _replay(epochs: "list[RecordedEpoch]", model: str, options: Values) -> tuple[str, int]:
    """Return the first difference, empty if there is none, and the number of steps compared."""
    from launch.replay.values import Replay
    from worker_svc.device.open import open_device
    from worker_svc.worker import Worker

    worker = Worker(open_device(options["device"]), options["num_threads"])
    worker.start_thread()
    replayed = Replay(worker, model, _report)
    return str(replayed.run(epochs) or ""), replayed.num_steps


def _check_orders(epochs: "list[RecordedEpoch]") -> tuple[str, int]:
    """Return the first orders that do not fit, empty if all do, and the number of steps checked."""
    from launch.replay.orders import OrderCheck

    num_steps = 0
    for epoch in epochs:
        check = OrderCheck(epoch)
        wrong = check.run(_report)
        num_steps += check.num_steps
        start = "" if epoch.has_beginning else ", its beginning is gone"
        _report(f"epoch {epoch.header.epoch}: {check.num_steps} steps{start}")
        if wrong:
            return wrong, num_steps
    return "", num_steps
