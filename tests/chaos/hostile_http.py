"""What nobody should send over HTTP: wrong types, malformed JSON, heads, paths and frames."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.hostile_frames import JSON, frames, request_bytes
from tests.chaos.http_fields import EXTREME, ROUTES, WRONG, good_body, kinds_of, with_value


@dataclass(frozen=True, slots=True)
class Request:
    """One request that should not be sent.

    Attributes:
        kind: of what is wrong with it.
        content: bytes of it.
        route: whose answer it gets.
        method: of it.
        is_wrong: whether it must be refused; else it may be taken.
        param: the field that the refusal must name; "" for any.
        num_answers: after which its own connection is ended, 0 ends it at once; None for one that
            leaves its connection to others.
    """

    kind: str
    content: bytes
    route: str = ""
    method: str = "POST"
    is_wrong: bool = True
    param: str = ""
    num_answers: int | None = None


def _posted(
    kind: str, route: str, body: bytes, headers: Mapping[str, str] = JSON, **more: Any
) -> Request:
    return Request(kind, request_bytes("POST", route, headers, body), route, **more)


class HostileRequests:
    """Draws requests without end.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._fields = [(route, *each) for route in ROUTES for each in kinds_of(route).items()]

    def __iter__(self) -> Iterator[Request]:
        """Yield requests."""
        draws: dict[Callable[[], Request], int] = {
            self._wrong_type: 6,
            self._extreme: 5,
            self._absurd: 2,
            self._malformed: 5,
            self._headers: 3,
            self._path: 2,
            self._frame: 1,
        }
        while True:
            yield self._draw.choices(list(draws), list(draws.values()))[0]()

    def _wrong_type(self) -> Request:
        """Return a good body in which one field has another type."""
        route, path, kind = self._draw.choice(self._fields)
        body = with_value(self._draw, route, path, self._draw.choice(WRONG[kind]))
        return _posted("wrong types", route, json.dumps(body).encode(), param=path)

    def _extreme(self) -> Request:
        """Return a good body in which some fields are at and beyond their bounds."""
        route, path, kind = self._draw.choice(self._fields)
        body = with_value(self._draw, route, path, self._draw.choice(EXTREME[kind]))
        for _ in range(self._draw.choice((0, 0, 1, 3))):
            _, path, kind = self._draw.choice([each for each in self._fields if each[0] == route])
            if "." not in path:
                body[path] = self._draw.choice(EXTREME[kind])
        return _posted("extremes", route, json.dumps(body).encode(), is_wrong=False)

    def _absurd(self) -> Request:
        """Return a body whose fields hold anything."""
        route = self._draw.choice(list(ROUTES))
        names = [path for other, path, _ in self._fields if other == route and "." not in path]
        body = {name: self._value(0) for name in self._draw.sample(names, min(5, len(names)))}
        text = json.dumps({**good_body(self._draw, route), **body})
        return _posted("absurd values", route, text.encode(), is_wrong=False)

    def _value(self, depth: int) -> Any:
        draw = self._draw
        match draw.randrange(7 if depth < 4 else 4):
            case 0:
                return draw.choice((None, True, False))
            case 1:
                return draw.choice(EXTREME["number"])
            case 2 | 3:
                return draw.choice(EXTREME["text"])
            case 4:
                return [self._value(depth + 1) for _ in range(draw.choice((0, 1, 3, 40)))]
        names = ("type", "role", "content", "name", "function", "schema", "a", "")
        return {draw.choice(names): self._value(depth + 1) for _ in range(draw.choice((1, 2, 4)))}

    def _malformed(self) -> Request:
        """Return what is no JSON object of a request."""
        draw, route = self._draw, self._draw.choice(list(ROUTES))
        good = json.dumps(good_body(draw, route)).encode()
        place, depth = draw.randrange(1, len(good)), draw.choice((65, 1000, 200_000))
        texts: tuple[bytes, ...] = (
            good[:place],
            good[:place] + draw.randbytes(draw.choice((1, 4))) + good[place:],
            good + good,
            good[:-1] + b', "temperature": NaN}',
            good[:-1] + b', "temperature": -Infinity}',
            good[:-1] + b', "temperature": 1e999}',
            good[:-1] + b', "seed": ' + b"9" * draw.choice((5000, 100_000)) + b"}",
            good[:-1] + b', "user": "\\ud800"}',
            good[:-1] + b', "\\udc00": 1}',
            good[:-1] + b', "user": "\xff\xfe"}',
            good[:-1] + b', "a": ' + b"[" * depth + b"]" * depth + b"}",
            good[:-1] + b', "a": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
            b"[" * depth,
            b'{"a":' * depth,
            b'"' * depth,
            b'"\\' * depth,
            good[:-1] + b', "user": "\n"}',
            good[:-1] + b", }",
            good.replace(b'"', b"'"),
            b"\xef\xbb\xbf" + good,
            good.decode().encode("utf-16"),
            good.decode().encode("utf-32"),
            draw.choice((b"", b" ", b"null", b"5", b'"a"', b"[]", b"true", b"{", b"}", b"\0")),
            draw.randbytes(draw.choice((1, 30, 3000))),
            good[:-1] + b', "a": [' + b"1," * 300_000 + b"1]}",
            good[:-1] + b', "a": [' + b"[]," * 70_000 + b"1]}",
            b'{"prompt": "' + b"a" * 2**23 + b'"}' if draw.random() < 0.05 else b"{]",
        )
        place = draw.randrange(len(texts))
        # A byte within a text may be JSON all the same.
        return _posted("malformed JSON", route, texts[place], is_wrong=place not in (1, 13, 19))

    def _headers(self) -> Request:
        """Return a good body under a bad head, or one whose names come twice."""
        draw, route = self._draw, self._draw.choice(list(ROUTES))
        good = json.dumps(good_body(draw, route)).encode()
        twice = good[:-1] + b"," + good[1:-1] + b', "model": 5, "model": "", "model": 7}'
        choices: tuple[tuple[bytes, dict[str, str], bool], ...] = (
            (good, {"content-type": "text/plain"}, True),
            (good, {"content-type": ""}, True),
            (good, {}, True),
            (good, {"content-type": "application/x-www-form-urlencoded"}, True),
            (good, {"content-type": "multipart/form-data; boundary=a"}, True),
            (good, {"content-type": "application/json" * 300}, True),
            (good, {**JSON, "content-encoding": "gzip"}, True),
            (good, {**JSON, "x-request-id": "a b"}, True),
            (good, {**JSON, "x-request-id": "a" * 129}, True),
            (good, {**JSON, "x-request-id": "\xff\xe9"}, True),
            (
                good,
                {**JSON, "x-request-timeout-s": draw.choice(("nan", "-1", "0", "1e9", "a"))},
                True,
            ),
            (good, {**JSON, "last-event-id": draw.choice(("x", "-1", "1.2", "9" * 2000))}, False),
            (good, {**JSON, "authorization": "Bearer " + "a" * 5000}, False),
            (good, {**JSON, "traceparent": draw.choice(("00-0-0-0", "a" * 900, "\xe9"))}, False),
            (good, {**JSON, "cookie": "a=b; " * 1000, "range": "bytes=5-1"}, False),
            (good, {**JSON, "accept": "image/png", "accept-encoding": "gzip;q=x"}, False),
            (good, {**JSON, "origin": "null", "access-control-request-method": "PUT"}, False),
            (good, {**JSON, "content-type": "Application/JSON ; charset=latin-1"}, False),
            (twice, JSON, True),
        )
        body, headers, is_wrong = draw.choice(choices)
        return _posted("heads", route, body, headers, is_wrong=is_wrong)

    def _path(self) -> Request:
        """Return a request for what is not there."""
        draw = self._draw
        name = "".join(
            draw.choices("a/.%~;:@!$&'()*+,=-_\\\"<>^`{|}\xe9", k=draw.choice((1, 8, 200)))
        )
        paths = (
            *("//", "/..", "/../../etc/passwd", "/%2e%2e/%00", "/v1", "/v1/", "/V1/models"),
            *(
                "/v1/models/",
                "/v1/completions/",
                "/v1/responses/",
                "/health/..",
                "*",
                "/v1//models",
            ),
            *(
                f"/v1/responses/{name}?starting_after={draw.choice(('-9', 'a', '9' * 50))}",
                f"/{name}",
            ),
            *("/v1/responses/resp_a/cancel", "/v1/responses/resp_a?stream=false", "/" + "a" * 9000),
            *("/v1/models?" + "a=b&" * 900, "/v1/completions#a", "http://b/v1/nothing"),
        )
        method = draw.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUIRE"))
        path = draw.choice(paths).replace(" ", "")
        body = None if method == "GET" else b"{}"
        content = request_bytes(method, path, JSON, body)
        return Request("paths", content, "other", method, is_wrong="/v1/models?" not in path)

    def _frame(self) -> Request:
        """Return what is no request of HTTP/1.1, or only a part of one."""
        content, num_answers = self._draw.choice(frames(self._draw))
        method = content[:4].decode("latin-1").strip()
        return Request("frames", content, method=method, is_wrong=False, num_answers=num_answers)
