"""A client of gRPC at the port for HTTP/1.1: its first call ends with a status that says so.

A GOAWAY alone would not do: gRPC calls again by itself what no server took notice of, at once and
without end.
"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n"
"""How what a client of HTTP/2 sends begins (RFC 9113, 3.4)."""

_REST_OF_PREFACE = b"\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
# Settings, and what else may come before a call.
_MAX_BYTES = 65_536
_HEADERS, _SETTINGS, _GOAWAY = 0x1, 0x4, 0x7
_END_STREAM, _END_HEADERS = 0x1, 0x4
_FAILED_PRECONDITION = 9


class GrpcCaller:
    """Reads what such a client sends, as far as its first call.

    Args:
        text: why the call ends; ASCII, of fewer than 255 bytes.
    """

    def __init__(self, text: str) -> None:
        self._text = text.encode("ascii")
        self._num_read = 0
        self._next = 0  # where the next frame begins, once the preface is there
        self._unread = bytearray()

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        """Return what to send upon what came, and whether that is the last.

        Args:
            data: of the connection, in order, with the preface.
        """
        settings = _frame(_SETTINGS) if not self._num_read else b""
        self._num_read += len(data)
        self._unread += data
        next_frame = len(PREFACE + _REST_OF_PREFACE) if settings else self._next
        while next_frame + _HEAD_BYTES <= len(self._unread):
            length = int.from_bytes(self._unread[next_frame : next_frame + 3])
            kind, _, stream = struct.unpack_from(">BBI", self._unread, next_frame + 3)
            if kind == _HEADERS:
                return settings + self._refusal(stream), True
            next_frame += _HEAD_BYTES + length
        self._next = next_frame
        return settings, len(self._unread) > _MAX_BYTES

    def _refusal(self, stream: int) -> bytes:
        """Return the frames that end a call, and with it the connection."""
        fields = (
            (b"content-type", b"application/grpc"),
            (b"grpc-status", b"%d" % _FAILED_PRECONDITION),
            (b"grpc-message", self._text),
        )
        # ":status 200" is entry 8 of the static table, others are literals (RFC 7541, 6.1, 6.2.2).
        block = b"\x88" + b"".join(b"\x00" + _string(name) + _string(each) for name, each in fields)
        last = struct.pack(">II", stream, 0) + self._text
        return _frame(_HEADERS, block, _END_STREAM | _END_HEADERS, stream) + _frame(_GOAWAY, last)


def _string(value: bytes) -> bytes:
    """Return a string of HPACK of fewer than 255 bytes, not compressed (RFC 7541, 5.1, 5.2)."""
    length = len(value)
    return (bytes([length]) if length < 127 else bytes([127, length - 127])) + value


def _frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload
