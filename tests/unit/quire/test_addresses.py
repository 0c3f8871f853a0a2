"""Addresses, as every service reads them."""

import pytest

from quire.contract.addresses import check_address, check_listening, split_address
from quire.contract.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a:1", "a", "1"), ("10.0.0.1:65535", "10.0.0.1", "65535"), ("[::1]:50051", "::1", "50051")],
)
def test_a_host_is_what_sockets_take(address: str, host: str, port: str) -> None:
    check_address("field", address)
    assert split_address(address) == (host, port)


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:0", "a:65536", "a:x", "unix:/s:1"])
def test_anything_else_is_refused_by_the_name_of_its_field(address: str) -> None:
    with pytest.raises(ConfigError, match=r"field: must be HOST:PORT with a port in \[1, 65535\]"):
        check_address("field", address)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost"])
def test_what_stays_on_this_machine_may_be_in_the_clear(host: str) -> None:
    check_listening(host, is_encrypted=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "::ffff:10.0.0.1", "worker-0"])
def test_what_leaves_it_must_be_encrypted_or_asked_for(host: str) -> None:
    with pytest.raises(ConfigError, match=r"listening on .* in the clear"):
        check_listening(host, is_encrypted=False, insecure=False)
    check_listening(host, is_encrypted=True, insecure=False)
    check_listening(host, is_encrypted=False, insecure=True)
