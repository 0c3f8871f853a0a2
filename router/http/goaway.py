"""What a client of HTTP/2, such as gRPC's, is told at the port for HTTP/1.1."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n"
"""What such a client sends first (RFC 9113, 3.4)."""

_SETTINGS, _GOAWAY = 0x4, 0x7
_HTTP_1_1_REQUIRED = 0xD


def goaway(text: str) -> bytes:
    """Return the frames that end a connection of HTTP/2 with a text for who reads its errors.

    Sections 6.5 and 6.8 of RFC 9113: a server's first frame is SETTINGS, here without any; GOAWAY
    names the last stream that it took, here none.
    """
    last = struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + text.encode()
    return _frame(_SETTINGS, b"") + _frame(_GOAWAY, last)


def _frame(kind: int, payload: bytes) -> bytes:
    """Return a frame of stream 0 without flags (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, 0, 0) + payload
