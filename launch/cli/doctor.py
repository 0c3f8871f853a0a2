"""`quire doctor`: what a bug report needs, and whether this machine keeps the invariance rule."""

import platform
import sys

import typer

from worker_svc.isa import check_isa


def doctor() -> None:
    """Print versions, instruction sets, which --quantization is fast; check what keeps bits.

    Speeds are of one linear layer, on as many threads as this process may have.
    """
    from importlib.metadata import version

    from launch.extras import require
    from quire import __version__
    from quire.contract.errors import ConfigError

    try:
        require("quire doctor", "worker")
        check_isa()
    except ConfigError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None

    typer.echo(f"quire      {__version__}")
    typer.echo(f"python     {platform.python_version()} on {platform.platform()}")
    for package in ("torch", "grpcio", "protobuf", "transformers"):
        typer.echo(f"{package:<10} {version(package)}")

    from worker_svc import invariance, ops, processor

    typer.echo(f"kernels    {ops.isa()} (this machine can: {', '.join(ops.available_isas())})")
    typer.echo(f"unused     {', '.join(processor.unused_extensions()) or 'nothing'}")
    for kind, factors in processor.linear_speeds().items():
        told = ", ".join(f"{method} {factor:.1f}" for method, factor in factors.items())
        fastest = max(factors, key=lambda method: factors[method])
        typer.echo(f"speed      {kind}: {told}, of bfloat16's; {fastest} is the fastest")
    typer.echo(f"gpu        {_gpu()}")
    typer.echo(f"gloo       {_gloo()}")
    violations = 0
    for name, dtype in invariance.DTYPES.items():
        found = invariance.check_linear_invariance(dtype)
        found += invariance.check_split_invariance(dtype)
        typer.echo(f"linear     {name}: {'ok' if not found else f'{len(found)} violations'}")
        for violation in found[:5]:
            typer.echo(f"           {violation}")
        violations += len(found)
    if violations:
        typer.echo(
            "error: outputs may depend on batch size, or on the number of workers, on this machine",
            err=True,
        )
        sys.exit(1)


def _gpu() -> str:
    """Say which GPU a worker would take, or why it takes none."""
    from quire.contract.errors import ConfigError
    from worker_svc.device.open import open_device

    try:
        device = open_device("cuda")
    except ConfigError as error:
        return f"none: {error.message}"
    return f"{device.name} ({device.isa})"


def _gloo() -> str:
    """Say whether CPUs on several machines can exchange tensors encrypted."""
    from worker_svc.parallel.gloo_tls import gloo_tls_fault

    fault = gloo_tls_fault()
    return "TLS between machines" if fault is None else f"no TLS: {fault}"
