"""Addresses, as every service reads them."""

import pytest

from quire.addresses import check_address, split_address
from quire.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a:1", "a", "1"), ("10.0.0.1:65535", "10.0.0.1", "65535"), ("[::1]:50051", "::1", "50051")],
)
def test_a_host_is_what_sockets_take(address: str, host: str, port: str) -> None:
    check_address("field", address)
    assert split_address(address) == (host, port)


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:0", "a:65536", "a:x", "unix:/s:1"])
def test_anything_else_is_refused_by_the_name_of_its_field(address: str) -> None:
    with pytest.raises(ConfigError, match=r"field: HOST:PORT with a port in \[1, 65535\]"):
        check_address("field", address)
