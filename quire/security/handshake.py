"""Failed connections in plain words; grpc reports them as errors of its library."""

import re

# Parts of grpc's text, and what they mean to a user who wanted to connect.
_CAUSES = {
    "certificate has expired": "the server's certificate has expired",
    "CERTIFICATE_VERIFY_FAILED": "no authority in ca.crt vouches for the server's certificate",
    "Hostname Verification": "the server's certificate has another name or role",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
    # All that a server reports of a client that it refused; one that died sends the same.
    "Socket closed": "does the server want TLS, or another certificate?",
}


# Likewise, of connections that fail before there is a handshake, or behind it.
_OTHER_CAUSES = {
    "Connection refused": "nothing listens there; is the server up, and is this its port for gRPC?",
    "Failed parsing HTTP/2": "what listens there does not speak gRPC",
    "address lookup failed": "its host has no address",
    "No route to host": "no network leads there",
    "Network is unreachable": "no network leads there",
    "Connection timed out": "its host does not answer",
    "connection attempt timed out": "its host does not answer",
}
# The last that was tried; of a name there may be several.
_ADDRESS = re.compile(r"(?:ipv[46]:|unix:|lookup failed for )([^ ]*[^ :])(?::? |: |$)")


def handshake_failure(details: str) -> str | None:
    """Return why TLS gave no connection, from grpc's text on a call; None for another reason."""
    if not details.startswith("failed to connect"):
        return None
    return next((cause for part, cause in _CAUSES.items() if part in details), None)


def explain(details: str) -> str:
    """Return what a failed call's details mean, in a line; themselves where that is not known."""
    cause = handshake_failure(details)
    if cause is not None:
        return f"{cause} ({details})"
    if not details.startswith(("failed to connect", "errors resolving")):
        return details
    cause = next((cause for part, cause in _OTHER_CAUSES.items() if part in details), None)
    found = _ADDRESS.search(details)
    if cause is None or found is None:
        return details
    return f"cannot connect to {found[1]}: {cause}"
