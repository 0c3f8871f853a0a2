"""Refuses calls of peers whose certificate gives no role that may make them."""

from collections.abc import Awaitable, Callable
from functools import partial

import grpc

from quire.contract.errors import PermissionDeniedError
from quire.observe.log import get_logger
from quire.rpc.handlers import checked
from quire.security.roles import ALLOWED_ROLES, Role

TLS_VERSION = b"TLSv1.3"

log = get_logger()


class RoleInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets a call through if the peer's certificate has a role that `ALLOWED_ROLES` names for it.

    For servers whose clients must show a certificate of a trusted authority: what the certificate
    states is then true.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Put the check in front of the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return checked(handler, partial(check_role, handler_call_details.method))


def check_role(method: str, context: grpc.aio.ServicerContext) -> None:
    """Check that the peer of a call may make it.

    Args:
        method: "/package.Service/Method".
        context: of the call.

    Raises:
        PermissionDeniedError: it may not; names the roles that may, and those it has.
    """
    peer = context.auth_context()
    if peer.get("ssl_tls_version", [TLS_VERSION])[0] != TLS_VERSION:
        raise PermissionDeniedError("this server speaks TLS 1.3 and nothing older")
    # DNS names alone: a name of another kind, such as an e-mail address, gives no role.
    names = {name.decode(errors="replace") for name in peer.get("peer_dns", ())}
    roles = names & set(Role)
    allowed = ALLOWED_ROLES.get(method, frozenset())
    if roles & allowed:
        return
    log.warning("role_refused", method=method, roles=sorted(roles), peer=context.peer())
    may = " or ".join(sorted(allowed)) or "no role"
    has = " and ".join(sorted(roles)) or "no role of Quire"
    raise PermissionDeniedError(
        f"{method.lstrip('/')} is for {may}; the certificate of this client is for {has}"
    )
