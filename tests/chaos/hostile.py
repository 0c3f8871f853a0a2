"""Messages that nobody should send: absurd values, noise, broken frames, floods of metadata."""

import asyncio
import contextlib
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from quire.v1 import inference_pb2, scheduler_pb2, worker_pb2

SERVICES = {
    "router": inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    "scheduler": scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"],
    "worker": worker_pb2.DESCRIPTOR.services_by_name["WorkerService"],
}
# Those that end a service, or take it from its owner, do what they were asked to.
COMMANDS = frozenset(("Drain",))
# What a service answers to a call that it does not understand, cannot take, or has taken.
RIGHT_CODES = frozenset(
    (
        grpc.StatusCode.OK,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        # Of this client's own deadline: what was sent is served for longer.
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
)
_RIGHT_ANSWERS = frozenset((*(each.name for each in RIGHT_CODES), "closed"))
# Details of the INTERNAL that grpc.aio makes up where it writes to a call that was answered.
_WRITE_FAILED = "Internal error from Core"
_CODE = re.compile(r"StatusCode\.(\w+)")
_DEADLINE_S = 2.0
_AT_ONCE = 16
_MAX_DEPTH = 4

_INTEGERS = (0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
_FLOATS = (0.0, -1.0, 1e-45, 1e38, math.inf, -math.inf, math.nan)
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _scalar(draw: random.Random, of: FieldDescriptor) -> object:
    if bounds := _BOUNDS.get(of.cpp_type):
        return draw.choice([each for each in _INTEGERS if bounds[0] <= each <= bounds[1]])
    if of.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice(_FLOATS)
    if of.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if of.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice((0, 1, 2, 3, 99, -1))
    length = draw.choice((0, 1, 8, 300, 70_000 if draw.random() < 0.02 else 30))
    if of.type == FieldDescriptor.TYPE_BYTES:
        return draw.randbytes(length)
    return "".join(draw.choices("a\0 /%\u00e9\u4e00\U0001f600{}", k=length))


def fill(draw: random.Random, message: Message, depth: int = 0) -> Message:
    """Give some fields of a message values at and beyond their bounds.

    Mutates: message.
    """
    for each in message.DESCRIPTOR.fields:
        if draw.random() < 0.4:
            continue
        if each.is_repeated:
            number = draw.choice((0, 1, 2, 5, 5000 if draw.random() < 0.02 else 3))
            _repeat(draw, message, each, number, depth)
        elif each.message_type is None:
            setattr(message, each.name, _scalar(draw, each))
        elif depth < _MAX_DEPTH:
            inner = getattr(message, each.name)
            inner.SetInParent()
            fill(draw, inner, depth + 1)
    return message


def _repeat(
    draw: random.Random, message: Message, of: FieldDescriptor, number: int, depth: int
) -> None:
    values = getattr(message, of.name)
    entry = of.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if value.message_type is None:
            for _ in range(number):
                values[_scalar(draw, key)] = _scalar(draw, value)
    elif entry is None:
        values.extend(_scalar(draw, of) for _ in range(number))
    elif depth < _MAX_DEPTH:
        for _ in range(min(number, 50)):
            fill(draw, values.add(), depth + 1)


def _absurd(draw: random.Random, method: MethodDescriptor) -> bytes:
    return fill(draw, GetMessageClass(method.input_type)()).SerializeToString()


def _torn(draw: random.Random, method: MethodDescriptor) -> bytes:
    whole = bytearray(_absurd(draw, method) or b"\x0a\x05hello")
    for _ in range(draw.randint(1, 4)):
        whole[draw.randrange(len(whole))] = draw.randrange(256)
    return bytes(whole[: draw.randint(1, len(whole))])


def _noise(draw: random.Random, _: MethodDescriptor) -> bytes:
    return draw.randbytes(draw.choice((1, 16, 300, 4096)))


_PAYLOADS: dict[str, Callable[[random.Random, MethodDescriptor], bytes]] = {
    "absurd values": _absurd,
    "torn messages": _torn,
    "random bytes": _noise,
}


def _flood(draw: random.Random) -> list[tuple[str, str | bytes]]:
    return [
        (f"x-{draw.randrange(10**6)}-bin", draw.randbytes(draw.choice((1, 100, 2000))))
        for _ in range(draw.choice((1, 30, 300)))
    ]


@dataclass(slots=True)
class Attack:
    """Sends hostile messages to one port.

    Attributes:
        role: of the service there.
        address: where it listens.
        codes: how each kind of message was answered, so far.
        errors: what was answered as nothing may be: its kind, answer and details.
    """

    role: str
    address: str
    seed: int
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def record(self, kind: str, answer: str, details: str = "") -> None:
        """Count an answer: the name of a status, or what became of a connection.

        Mutates: codes, errors.
        """
        self.codes[kind, answer] += 1
        if answer not in _RIGHT_ANSWERS:
            self.errors.append(f"{kind}: {answer}{details}")

    async def run(self, number: int) -> None:
        """Send so many messages, some of them at once."""
        draw = random.Random(self.seed)
        kinds = iter(draw.choices([*_PAYLOADS, "metadata", "frames"], (6, 6, 4, 1, 1), k=number))
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            await asyncio.gather(*(self._work(channel, draw, kinds) for _ in range(_AT_ONCE)))

    async def _work(
        self, channel: grpc.aio.Channel, draw: random.Random, kinds: Iterator[str]
    ) -> None:
        methods = [each for each in SERVICES[self.role].methods if each.name not in COMMANDS]
        for kind in kinds:
            if kind == "frames":
                self.record(kind, await self._frames(draw))
                continue
            method = draw.choice(methods)
            payload = _PAYLOADS.get(kind, _absurd)(draw, method)
            metadata = _flood(draw) if kind == "metadata" else []
            code, details = await _call(channel, method, payload, metadata)
            self.record(kind, code.name, f" of {method.name}, {details}")

    async def _frames(self, draw: random.Random) -> str:
        """Speak HTTP/2, or nothing at all, badly; the service closes the connection."""
        host, _, port = self.address.rpartition(":")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        settings = b"\0\0\0\4\0\0\0\0\0"
        frame = draw.randrange(2**24).to_bytes(3, "big") + draw.randbytes(6) + draw.randbytes(200)
        text = draw.choice((b"", preface, preface + settings)) + draw.choice((frame, b"GET /"))
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return "refused"
        writer.write(text)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return "closed"


def answered_code(ends: Sequence[str]) -> grpc.StatusCode | None:
    """Return the code that a service answered, before grpc.aio put one of its own in its place.

    Args:
        ends: how the call described itself whenever it had ended.
    """
    code = _CODE.search(ends[0])
    return grpc.StatusCode[code[1]] if code else None


async def _call(
    channel: grpc.aio.Channel,
    method: MethodDescriptor,
    payload: bytes,
    metadata: Sequence[tuple[str, str | bytes]],
) -> tuple[grpc.StatusCode, str]:
    """Call a method with these bytes; return the status and its details."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = (
        ("unary", "stream")[method.client_streaming],
        ("unary", "stream")[method.server_streaming],
    )
    start = getattr(channel, "_".join(kind))(path)
    sent = iter([payload]) if method.client_streaming else payload
    call = start(sent, timeout=_DEADLINE_S, metadata=metadata)
    ends: list[str] = []
    call.add_done_callback(lambda call: ends.append(repr(call)))
    try:
        # An answer that goes on is not waited for.
        if method.server_streaming:
            async for _ in call:
                break
        else:
            await call
    except grpc.aio.AioRpcError as error:
        details = error.details() or ""
        code = answered_code(ends) if details == _WRITE_FAILED else None
        return code or error.code(), details
    finally:
        call.cancel()
    return grpc.StatusCode.OK, ""
