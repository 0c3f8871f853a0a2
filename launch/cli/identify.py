"""`quire identify`: what must be equal where a stream is to go on, of a model on this machine."""

import json
from dataclasses import asdict, fields
from typing import Annotated

import typer

from launch.cli.options import ModelArgument, Values, model_path, takes_options
from launch.cluster.config import ClusterConfig
from quire.contract.engine_options import DeviceOptions, LoadOptions
from worker_svc.isa import check_isa

_OF_LOADING = tuple(each.name for each in fields(LoadOptions))


@takes_options(ClusterConfig, only=("device", *_OF_LOADING))
def identify(
    options: Values,
    model: ModelArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the numerics id and the text id that a model has under the code that is installed.

    Cells of the same ids go on with each other's streams. The files are read; only a model that
    transformers runs is loaded, since whether it has a numerics id is tried on the loaded one.
    """
    from launch.extras import require
    from quire.contract.errors import QuireError
    from quire.observe import log

    # To stderr: what is printed may be read by a program.
    log.configure("identify")
    device = options.pop("device")
    try:
        require("quire identify", "worker")
        check_isa()
        from launch.model_files import read_model
        from launch.model_names import check_given

        if model is not None:
            check_given(model)
        DeviceOptions(device=device)  # which checks it
        path, load_options = model_path(model), LoadOptions(**options)
        read_model(path, "model")
        # Seconds of imports, which a mistake need not wait for.
        from worker_svc.device.open import open_device
        from worker_svc.loading.numerics_id import ids_of

        ids = ids_of(path, load_options, open_device(device))
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(asdict(ids)))
        return
    typer.echo(f"numerics id  {ids.numerics_id or 'none: its bits may vary'}")
    typer.echo(f"text id      {ids.text_id or 'none: the model has no tokenizer'}")
