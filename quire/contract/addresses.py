"""Addresses as people write them: "host:port", with brackets round an IPv6 host."""

import ipaddress
import re
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from quire.contract.errors import ConfigError

MAX_RANKS = 64
"""Most workers of one group."""

WILDCARD_HOSTS = frozenset({"0.0.0.0", "[::]", "::", "*"})
"""Hosts to listen on that no client can connect to."""


def bare_host(host: str) -> str:
    """Return a host as sockets take it: an IPv6 one without its brackets."""
    return host.removeprefix("[").removesuffix("]")


def join_address(host: str, port: int | str) -> str:
    """Return "host:port", with brackets round an IPv6 host, which may have them already."""
    bare = bare_host(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def split_address(address: str) -> tuple[str, str]:
    """Return host and port of an address; an IPv6 host without its brackets, as sockets take it."""
    host, _, port = address.rpartition(":")
    return bare_host(host), port


def is_loopback(host: str) -> bool:
    """Return whether what is sent to a host stays on this machine."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare_host(host))
    except ValueError:
        return False  # a name, which may mean anything
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_host(field: str, host: str) -> None:
    """Check that a host to listen on is one.

    Args:
        field: for the message.
        host: name or address.

    Raises:
        ConfigError: it has a port or a scheme, or is neither.
    """
    bare = bare_host(host)
    is_name = host == bare and re.fullmatch(r"[\w.-]*[^\W\d][\w.-]*", bare)
    if is_name or bare == "*":
        return
    # Of numbers alone it has to be whole: gRPC looks 127.1 up as a name.
    with suppress(ValueError):
        if ipaddress.ip_address(bare).version == 6 or host == bare:
            return
    raise ConfigError(f"{field}: must be a name or an address without a port, got {host!r}")


def check_address(field: str, address: str) -> None:
    """Check that an address names a host and a port.

    Args:
        field: for the message.
        address: "host:port".

    Raises:
        ConfigError: it does not.
    """
    host, port = split_address(address)
    # A slash would make it a URI of another scheme, such as Ray's or gRPC's.
    if not host or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"{field}: must be HOST:PORT with a port in [1, 65535], got {address!r}")


def check_addresses(field: str, addresses: Collection[str]) -> None:
    """Check that each address names a host and a port, and that none is there twice.

    Args:
        field: for the message.
        addresses: "host:port" each.

    Raises:
        ConfigError: one does not, or is.
    """
    for address in addresses:
        check_address(field, address)
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"{field}: must be different addresses, got {', '.join(addresses)}")


def check_url(field: str, url: str) -> str:
    """Check that a URL names a scheme of HTTP and a host.

    Args:
        field: for the message.
        url: "http://host:port"; without a port it is that of the scheme.

    Returns:
        Its scheme, "http" or "https".

    Raises:
        ConfigError: it does not.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"{field}: must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
    return parts.scheme


def check_listening(host: str, is_encrypted: bool, insecure: bool) -> None:
    """Check that prompts and orders do not leave this machine in the clear by oversight.

    Args:
        host: to listen on.
        is_encrypted: whether connections are.
        insecure: whether the user allows connections in the clear.

    Raises:
        ConfigError: others could connect, in the clear, and the user has not allowed it.
    """
    if not is_encrypted and not insecure and not is_loopback(host):
        raise ConfigError(
            f"host: listening on {host} without TLS would send prompts in the clear and obey "
            "every peer that connects; give --tls-dir (`quire certs` makes one), or --insecure on "
            "a private network"
        )
