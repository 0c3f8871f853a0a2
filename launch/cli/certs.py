"""`quire certs`: a certificate authority for one cluster, and a certificate for each role."""

from pathlib import Path
from typing import Annotated

import typer


def certs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are, or are to be.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A host name or IP address by which clients know the router, beside localhost; "
            "repeat. Services know each other by role.",
        ),
    ] = None,
    days: Annotated[
        float, typer.Option(help="How long new certificates are valid.", show_default="90")
    ] = 90.0,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make new certificates of the authority there.")
    ] = False,
    new_authority: Annotated[
        bool,
        typer.Option(
            "--new-authority", help="Begin to replace the authority: trust a new one beside it."
        ),
    ] = False,
    forget_old: Annotated[
        bool, typer.Option("--forget-old", help="Trust the newest authority alone.")
    ] = False,
) -> None:
    """Make an authority and certificates for --tls-dir; replace them while the cluster runs.

    Services read DIR again when it changes. To replace the authority itself: --new-authority, then
    --renew, then --forget-old, each once every service has what the one before wrote.
    """
    from launch.authority import MAX_DAYS, CertificateDirectory
    from quire.contract.errors import ConfigError

    certificates = CertificateDirectory(directory)
    try:
        if renew + new_authority + forget_old > 1:
            raise ConfigError("--renew, --new-authority, --forget-old: one at a time")
        if not 0 < days <= MAX_DAYS:
            raise ConfigError(f"--days must be in (0, {MAX_DAYS}], got {days:g}")
        if renew:
            certificates.renew(hosts or (), days)
            done = f"{directory} has new certificates, valid for {days:g} days"
        elif new_authority:
            certificates.trust_new_authority()
            done = f"{directory} trusts a new authority beside the old one; next: --renew"
        elif forget_old:
            certificates.forget_old_authorities()
            done = f"{directory} trusts its newest authority alone"
        else:
            certificates.create(hosts or (), days)
            done = (
                f"{directory} has an authority and a certificate for each role, valid for "
                f"{days:g} days. Keep {directory / 'authority'} where no service runs."
            )
    except ConfigError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    typer.echo(done)
