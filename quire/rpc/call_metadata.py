"""What calls carry beside their messages: an API key, and the caller's protocol version."""

import os

from quire.contract.addresses import is_loopback, split_address
from quire.contract.callers import check_key
from quire.contract.errors import ConfigError
from quire.contract.versions import PROTOCOL

API_KEY = "authorization"
SCHEME = "Bearer"

PROTOCOL_VERSION = "quire-protocol"
PROTOCOL_METADATA = ((PROTOCOL_VERSION, str(PROTOCOL)),)


def call_metadata(
    target: str, api_key: str | None, *, encrypted: bool, insecure: bool
) -> tuple[tuple[str, str], ...]:
    """Return the metadata that calls to a router carry: the key, if there is one.

    Args:
        target: where the calls go, "host:port".
        api_key: None takes the one in QUIRE_API_KEY, if that is set.
        encrypted: whether the connection is TLS.
        insecure: whether the key may go over a network in the clear, as with QUIRE_INSECURE=1.

    Raises:
        ConfigError: the key would travel in the clear, or is malformed. The message does not
            contain it.
    """
    api_key = api_key or os.environ.get("QUIRE_API_KEY")
    if not api_key:
        return ()
    check_key(api_key)
    insecure = insecure or os.environ.get("QUIRE_INSECURE") == "1"
    if not (encrypted or insecure or is_loopback(split_address(target)[0])):
        raise ConfigError(
            f"api_key: must not go to {target} in the clear; give tls_dir, or insecure "
            "(QUIRE_INSECURE=1) on a network that you trust"
        )
    return ((API_KEY, f"{SCHEME} {api_key}"),)
