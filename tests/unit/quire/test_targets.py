"""Addresses of routers as people write them, and what a connection that fails is told in."""

import pytest

from quire.contract.errors import ConfigError
from quire.sdk.targets import parse_targets
from quire.security.handshake import explain


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:50051", ["127.0.0.1:50051"]),
        ("router:1", ["router:1"]),
        ("[::1]:50051", ["[::1]:50051"]),
        ("::1:50051", ["[::1]:50051"]),
        ("a:1, b:2,", ["a:1", "b:2"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
        ("http://localhost:50051/", ["localhost:50051"]),
        ("grpc://localhost:50051", ["localhost:50051"]),
        ("unix:/run/quire.sock", ["unix:/run/quire.sock"]),
        ("dns:///routers.local:50051", ["dns:///routers.local:50051"]),
    ],
)
def test_an_address_is_read_in_every_spelling(target: str | list[str], expected: list[str]) -> None:
    assert parse_targets(target, encrypted=False) == expected


def test_https_needs_certificates() -> None:
    assert parse_targets("https://router:50051", encrypted=True) == ["router:50051"]
    with pytest.raises(ConfigError, match=r"^target: must be HOST:PORT without tls_dir.*https:"):
        parse_targets("https://router:50051", encrypted=False)


@pytest.mark.parametrize(
    "target", ["", ",", "localhost", "localhost:", ":50051", "localhost:0", "localhost:65536", []]
)
def test_what_is_no_address_is_refused(target: str | list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^target: must be HOST:PORT"):
        parse_targets(target, encrypted=False)


def test_the_url_of_an_openai_client_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"for gRPC, 50051 .* a URL of another API"):
        parse_targets("http://localhost:8000/v1", encrypted=False)


FAILED = "failed to connect to all addresses; last error: "


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (
            f"{FAILED}UNKNOWN: ipv4:127.0.0.1:9: Failed to connect to remote host: Connection "
            "refused",
            "cannot connect to 127.0.0.1:9: nothing listens there",
        ),
        (
            f"{FAILED}UNKNOWN: ipv6:%5B::1%5D:9: Failed to connect to remote host: connect: "
            "Connection refused (111)",
            "cannot connect to %5B::1%5D:9: nothing listens there",
        ),
        (
            f"{FAILED}UNAVAILABLE: ipv4:10.0.0.1:8000: Failed parsing HTTP/2 (Expected SETTINGS "
            "frame as the first frame, got frame type 79)",
            "cannot connect to 10.0.0.1:8000: what listens there does not speak gRPC",
        ),
        (
            "errors resolving nowhere:9: [field:hostname lookup error:address lookup failed for "
            "nowhere:9: Domain name not found]",
            "cannot connect to nowhere:9: its host has no address",
        ),
        ("failed to connect to all addresses", "failed to connect to all addresses"),
        ("Connection refused by a model", "Connection refused by a model"),
    ],
)
def test_a_failed_connection_is_told_in_plain_words(details: str, told: str) -> None:
    assert explain(details).startswith(told)
