from quire.security.roles import ALLOWED_ROLES
from tests.every_rpc import every_rpc

OF_GRPC = "/grpc."


def test_every_rpc_is_open_to_some_role() -> None:
    listed = {method for method in ALLOWED_ROLES if not method.startswith(OF_GRPC)}
    assert listed == {f"/{each}" for each in every_rpc()}
    assert all(ALLOWED_ROLES.values())
