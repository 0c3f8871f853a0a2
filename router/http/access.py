"""Who calls over HTTP: the API key, the role of a certificate, and what a front lets through."""

from collections.abc import Collection

from starlette.datastructures import Headers

from quire.contract.callers import ANYONE, Caller
from quire.contract.errors import PermissionDeniedError, UnauthenticatedError
from quire.rpc.call_metadata import SCHEME
from quire.security.api_keys import ApiKeys
from quire.security.roles import ALLOWED_ROLES, Role

# As for the same requests over gRPC.
_ROLES = ALLOWED_ROLES["/quire.v1.InferenceService/Generate"]
# One text for a key that is absent, malformed, wrong, revoked or expired: a guess teaches nothing.
_REFUSAL = "this call needs a valid API key, as header 'authorization: Bearer KEY' or 'x-api-key'"


class HttpAccess:
    """Knows callers by the keys that their requests bring.

    Args:
        keys: that are valid; None where calls need none.

    Attributes:
        num_refused: requests refused so far for want of a key.
    """

    def __init__(self, keys: ApiKeys | None) -> None:
        self._keys = keys
        self.num_refused = 0

    def caller_of(self, headers: Headers) -> Caller:
        """Return who makes a request.

        Raises:
            UnauthenticatedError: it brings no valid key, or several.
        """
        if self._keys is None:
            return ANYONE
        presented = set(headers.getlist("x-api-key"))
        for value in headers.getlist("authorization"):
            scheme, _, key = value.partition(" ")
            presented.add(key.strip(" ") if scheme.lower() == SCHEME.lower() else "")
        caller = self._keys.find(presented.pop()) if len(presented) == 1 else None
        if caller is None:
            self.num_refused += 1
            raise UnauthenticatedError(_REFUSAL)
        return caller


def check_roles(roles: Collection[Role] | None) -> None:
    """Check that a certificate lets its holder ask for answers.

    Args:
        roles: of the client's certificate; None where none is asked for.

    Raises:
        PermissionDeniedError: it does not; names the roles that may, and those it has.
    """
    if roles is None or _ROLES.intersection(roles):
        return
    may = " or ".join(sorted(_ROLES))
    has = " and ".join(sorted(roles)) or "no role of Quire"
    raise PermissionDeniedError(f"this is for {may}; the certificate of this client is for {has}")
