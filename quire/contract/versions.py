"""The protocol version: which releases understand each other, so that clusters upgrade in turn.

A release speaks one version, and talks with peers of the version before and the one after. Versions
count changes that a peer must know of, not releases: CONTRIBUTING.md says when to raise it.
"""

from quire.contract.errors import ProtocolDiffersError
from quire.version import __version__

PROTOCOL = 1
# Of releases from before there were versions: they send none.
UNVERSIONED = 0
# How far apart two peers may be.
SKEW = 1


def check_protocol(version: int, peer: str) -> None:
    """Check that this release and a peer understand each other.

    Args:
        version: the peer's; `UNVERSIONED` if it sent none.
        peer: shown to the user, e.g. "worker 10.0.0.7:50053".

    Raises:
        ProtocolDiffersError: they are too far apart; names both versions.
    """
    low, high = max(UNVERSIONED, PROTOCOL - SKEW), PROTOCOL + SKEW
    if not low <= version <= high:
        raise ProtocolDiffersError(
            f"protocol_version: must be in [{low}, {high}] for Quire {__version__}, whose own is "
            f"{PROTOCOL}, got {version} of {peer}"
        )
