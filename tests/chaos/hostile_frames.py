"""What a connection may carry that is no request of HTTP/1.1, only a part of one, or several."""

import random
from collections.abc import Mapping

JSON = {"content-type": "application/json"}
ROUTE = "/v1/completions"


def request_bytes(
    method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> bytes:
    """Return a request as it is sent, its length with it unless another is given."""
    own = {"host": "a", **headers}
    if body is not None and "transfer-encoding" not in own:
        own.setdefault("content-length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in own.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1", "replace") + (body or b"")


def frames(draw: random.Random) -> list[tuple[bytes, int]]:
    """Return contents of connections, each with the number of answers that it is due.

    One that is due none is broken off by its client. A second answer may follow the first, to what
    comes behind a request.
    """
    body = b'{"prompt": "a", "max_tokens": 1}'
    good = request_bytes("POST", ROUTE, JSON, body)
    chunked = request_bytes("POST", ROUTE, {**JSON, "transfer-encoding": "chunked"})
    whole = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    cut = draw.randrange(1, len(good))
    length = b"content-length: %d" % len(body)

    def headed(*lines: bytes) -> bytes:
        return b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n" + b"".join(
            line + b"\r\n" for line in (b"content-type: application/json", *lines, b"")
        )

    broken_off = (
        b"",
        good[:cut],
        good,
        good[:cut] + draw.randbytes(8) + good[cut:],
        chunked + whole[: draw.randrange(len(whole))],
        chunked + b"1\r\n{\r\n" * 3,
        chunked + b"ffffffffffffffffff\r\n" + body,
        # Answered, which a client that still sends may miss.
        headed(b"a: " + b"b" * 300_000),
        b"\r\n" * 20_000,
        draw.randbytes(draw.choice((1, 100, 20_000))),
    )
    answered = (
        good + draw.randbytes(40),
        chunked + whole,
        chunked + b"zz\r\n" + body,
        chunked + b"-5\r\n" + body,
        chunked + b"%x;%b\r\n%b\r\n0\r\n\r\n" % (len(body), b"a" * 3_000, body),
        chunked + b"%x\r\n%b" % (len(body), body) + b"X" * 10,
        headed(b"content-length: 5", b"transfer-encoding: chunked") + whole,
        headed(b"content-length: -5") + body,
        headed(b"content-length: 5", b"content-length: 6") + body,
        headed(b"content-length: 1e3") + body,
        headed(b"content-length: " + b"9" * 300) + body,
        headed(b"content-length: 99999999999") + body,
        headed(b"transfer-encoding: gzip, chunked") + whole,
        headed(b"transfer-encoding: identity") + body,
        headed(b"expect: 100-continue", length) + body,
        headed(b"expect: coffee", length) + body,
        headed(b"a: " + b"b" * draw.choice((15_000, 20_000))),
        headed(*(b"a%d: b" % number for number in range(2000))),
        headed(b"a\0b: c"),
        headed(b"a b: c"),
        headed(b": c"),
        headed(b"a: b\r\n folded"),
        headed(b"a: b\0"),
        headed(b"a: \xff\xfe"),
        headed(b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13"),
        headed(
            b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABk"
        ),
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/2.0\r\nhost: a\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: a\n\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET  /health  HTTP/1.1\r\nhost: a\r\n\r\n",
        b"get /health HTTP/1.1\r\nhost: a\r\n\r\n",
        b"HEAD /health HTTP/1.1\r\nhost: a\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://a:b:c/ HTTP/1.1\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(200),
        b"\r\n" * 3 + b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
    )
    return [*((each, 0) for each in broken_off), *((each, 1) for each in answered), (good * 5, 5)]
