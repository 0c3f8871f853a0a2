"""Failed handshakes of TLS in plain words; grpc reports them as errors of its library."""

# Parts of grpc's text, and what they mean to a user who wanted to connect.
_CAUSES = {
    "certificate has expired": "the server's certificate has expired",
    "CERTIFICATE_VERIFY_FAILED": "no authority in ca.crt vouches for the server's certificate",
    "Hostname Verification": "the server's certificate has another name or role",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
    # All that a server reports of a client that it refused; one that died sends the same.
    "Socket closed": "does the server want TLS, or another certificate?",
}


def handshake_failure(details: str) -> str | None:
    """Return why TLS gave no connection, from grpc's text on a call; None for another reason."""
    if not details.startswith("failed to connect"):
        return None
    return next((cause for part, cause in _CAUSES.items() if part in details), None)


def explain(details: str) -> str:
    """Return grpc's text on a failed connection, with its cause where that is the handshake."""
    cause = handshake_failure(details)
    return details if cause is None else f"{cause} ({details})"
