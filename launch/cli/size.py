"""`quire size`: what a model takes, and what of it fits this machine."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launch.cli.options import ModelArgument, Values, takes_options
from launch.cluster.config import ClusterConfig
from quire.contract.engine_options import GIB, DeviceOptions, LoadOptions
from worker_svc.isa import check_isa

if TYPE_CHECKING:
    from worker_svc.loading.model_size import ModelSize

_OF_LOADING = tuple(each.name for each in fields(LoadOptions))


@takes_options(ClusterConfig, only=("device", *_OF_LOADING))
def size(
    options: Values,
    model: ModelArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a model takes: weights, a token of its cache, ranks that can share it; what fits.

    Only what its files say of themselves is read. Figures are of the options given, and of what is
    free here now.
    """
    from launch.extras import require
    from quire.contract.errors import ConfigError, QuireError
    from quire.gguf_file import is_model
    from quire.observe import log

    log.configure("size")
    device_name = options.pop("device")
    try:
        require("quire size", "worker")
        check_isa()
        from launch.cluster.config import embedded_model
        from launch.model_files import read_model
        from launch.model_names import find_model

        DeviceOptions(device=device_name)  # which checks it
        load_options = LoadOptions(**options)
        path = embedded_model() if model is None else Path(find_model(model)).resolve()
        if not is_model(path):
            raise ConfigError(
                f"model: must be a directory or a .gguf file that exists, got {model}"
            )
        read_model(path, "model")
        # Seconds of imports, which a mistake need not wait for.
        from worker_svc.device.open import open_device
        from worker_svc.loading.model_size import size_of

        device = open_device(device_name)
        found = size_of(path, load_options, device)
        free = _free_bytes(device)
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps({**asdict(found), "free_bytes": free, "device": device.name}))
        return
    method = options["quantization"]
    for line in _lines(model or path.name, found, method, free, device.name):
        typer.echo(line)


def _free_bytes(device: Any) -> int:
    """Return the memory that is free where a worker computes."""
    from worker_svc.device.host_memory import available_memory_bytes

    if device.torch_device.type == "cpu":
        return available_memory_bytes()
    free: int = device.memory_bytes()[0]
    return free


def _lines(name: str, size: "ModelSize", method: str, free: int, device: str) -> list[str]:
    weights = size.weight_bytes.get(method, size.stored_bytes)
    others = ", ".join(
        f"{each} {_in_units(count)}" for each, count in size.weight_bytes.items() if each != method
    )
    sequence = size.token_bytes * size.max_model_len
    lines = [
        f"model      {name}: {size.architecture}, {size.dtype}, "
        f"up to {size.max_model_len:,} tokens",
        f"weights    {_in_units(weights)}, {_in_units(size.stored_bytes)} in its files; "
        f"with another --quantization: {others}",
        f"cache      {size.token_bytes / 1024:,.1f} KiB a token, "
        f"{_in_units(sequence)} a request of full length",
        f"ranks      {', '.join(map(str, size.ranks))} (--tensor-parallel-size)",
    ]
    left = free - weights
    if left <= 0:
        fits = (
            f"{_in_units(free)} free of {device}: the weights do not fit; hold them in less with "
            "--quantization, or share them between machines"
        )
    else:
        num_tokens = left // size.token_bytes
        fits = (
            f"{_in_units(free)} free of {device}: the weights fit, and beside them at most "
            f"{num_tokens:,} tokens of cache, {num_tokens / size.max_model_len:,.1f} requests of "
            "full length at once"
        )
    return [*lines, f"fits       {fits}"]


def _in_units(num_bytes: float) -> str:
    unit = "GiB" if num_bytes >= GIB / 10 else "MiB"
    return f"{num_bytes / (GIB if unit == 'GiB' else 2**20):,.2f} {unit}"
