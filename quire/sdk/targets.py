"""Addresses of routers as people write them: "host:port", a URL, a list with commas."""

from collections.abc import Sequence

from quire.contract.addresses import join_address, split_address
from quire.contract.errors import ConfigError

# Names that gRPC resolves by itself.
_SCHEMES_OF_GRPC = ("dns:", "unix:", "unix-abstract:", "ipv4:", "ipv6:", "xds:", "passthrough:")
_IN_THE_CLEAR = ("http://", "grpc://")
_ENCRYPTED = ("https://", "grpcs://")


def parse_targets(target: str | Sequence[str], *, encrypted: bool) -> list[str]:
    """Return the address of each router as gRPC takes it.

    Args:
        target: an address, several with commas between them, or a sequence of addresses.
        encrypted: whether there are certificates for TLS.

    Raises:
        ConfigError: there is none, or one is no address of a port for gRPC.
    """
    each = target.split(",") if isinstance(target, str) else target
    found = [_parse(one.strip(), encrypted) for one in each if one.strip()]
    if not found:
        raise ConfigError(f"target: must be HOST:PORT of a router, got {target!r}")
    return found


def _parse(target: str, encrypted: bool) -> str:
    if target.startswith(_SCHEMES_OF_GRPC):
        return target
    bare = target
    for scheme in (*_IN_THE_CLEAR, *_ENCRYPTED):
        bare = bare.removeprefix(scheme)
    if target.startswith(_ENCRYPTED) and not encrypted:
        raise ConfigError(
            f"target: must be HOST:PORT without tls_dir, which has the certificates, got {target}"
        )
    bare = bare.removesuffix("/")
    if "/" in bare:
        raise ConfigError(
            "target: must be HOST:PORT of the port for gRPC, 50051 unless another was chosen, got "
            f"{target}, a URL of another API"
        )
    host, port = split_address(bare)
    if not host or not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise ConfigError(
            "target: must be HOST:PORT with a port in [1, 65535], 50051 unless another was chosen, "
            f"got {target!r}"
        )
    return join_address(host, port)
