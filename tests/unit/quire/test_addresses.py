"""Addresses, as every service reads them."""

import re

import pytest

from quire.contract.addresses import (
    bare_host,
    check_address,
    check_listening,
    check_url,
    join_address,
    split_address,
)
from quire.contract.errors import ConfigError
from quire.contract.service_options import ServiceOptions


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a:1", "a", "1"), ("10.0.0.1:65535", "10.0.0.1", "65535"), ("[::1]:50051", "::1", "50051")],
)
def test_a_host_is_what_sockets_take(address: str, host: str, port: str) -> None:
    check_address("field", address)
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    ("host", "bare", "address"),
    [
        ("::1", "::1", "[::1]:8000"),
        ("[::1]", "::1", "[::1]:8000"),
        ("::", "::", "[::]:8000"),
        ("[::]", "::", "[::]:8000"),
        ("[fe80::1%eth0]", "fe80::1%eth0", "[fe80::1%eth0]:8000"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:8000"),
        ("0.0.0.0", "0.0.0.0", "0.0.0.0:8000"),
        ("localhost", "localhost", "localhost:8000"),
        ("worker-0", "worker-0", "worker-0:8000"),
    ],
)
def test_brackets_round_a_host_are_taken_off_and_put_on(host: str, bare: str, address: str) -> None:
    assert bare_host(host) == bare
    assert join_address(host, 8000) == join_address(host, "8000") == address
    assert split_address(address) == (bare, "8000")
    check_address("field", address)


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:0", "a:65536", "a:x", "unix:/s:1"])
def test_anything_else_is_refused_by_the_name_of_its_field(address: str) -> None:
    with pytest.raises(ConfigError, match=r"field: must be HOST:PORT with a port in \[1, 65535\]"):
        check_address("field", address)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1:8000",
            "[::1]:8000",
            "http://127.0.0.1",
            "a b",
            "a/b",
            "[a]",
            "[127.0.0.1]",
        ),
        *("localhost:", "::1::", "::1%", "127.1", "127.0.0.256", "2130706433"),
    ],
)
def test_what_is_no_host_to_listen_on_is_refused(host: str) -> None:
    message = f"^host: must be a name or an address without a port, got {re.escape(repr(host))}$"
    for insecure in (False, True):
        with pytest.raises(ConfigError, match=message):
            ServiceOptions(host=host, insecure=insecure)
    with pytest.raises(ConfigError, match=f"^admin_{message[1:]}"):
        ServiceOptions(admin_host=host)


@pytest.mark.parametrize(
    "host",
    ["::", "[::]", "*", "0.0.0.0", "fe80::1%eth0", "[fe80::1%eth0]", "my_host-0.a.b", "bücher"],
)
def test_a_host_to_listen_on_is_a_name_or_an_address(host: str) -> None:
    ServiceOptions(host=host, admin_host=host, insecure=True)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost"),
        *("::ffff:127.0.0.1", "[::ffff:127.0.0.1]"),
    ],
)
def test_what_stays_on_this_machine_may_be_in_the_clear(host: str) -> None:
    check_listening(host, is_encrypted=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "::ffff:10.0.0.1", "worker-0"])
def test_what_leaves_it_must_be_encrypted_or_asked_for(host: str) -> None:
    with pytest.raises(ConfigError, match=r"listening on .* in the clear"):
        check_listening(host, is_encrypted=False, insecure=False)
    check_listening(host, is_encrypted=True, insecure=False)
    check_listening(host, is_encrypted=False, insecure=True)


def test_a_url_of_http_is_told_from_other_texts() -> None:
    for url in ("http://a", "http://a:1/path", "https://[::1]:65535"):
        assert check_url("field", url) == url.partition(":")[0]
    for url in ("", "a:1", "ftp://a", "http://", "http://:1", "http://a:0", "http://a:65536"):
        message = f"field: must be http://HOST:PORT or https://HOST:PORT, got {url!r}"
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            check_url("field", url)
