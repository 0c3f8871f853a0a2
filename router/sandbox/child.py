"""The side of a sandbox that is a process of its own: it answers questions within limits.

What it runs is whatever a client's texts make it do. So it has no secrets, may write no file, and
ends by itself: the kernel kills it when a question has used its time, in whatever loop it is, and
refuses it more memory than its limit. No thread could be ended like that.

Each message, in and out, is its length (4 bytes, big-endian) and JSON. The first one has the
settings and the limits; then each question is answered.
"""

import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from quire.contract.errors import InvalidRequestError

LENGTH = struct.Struct(">I")
# Its exit status.
OUT_OF_MEMORY = 3

# Returns the answer to a question, both as JSON has them; may raise InvalidRequestError.
Answer = Callable[[Any], dict[str, Any]]


def encode(content: Any) -> bytes:
    """Return a message."""
    body = json.dumps(content).encode()
    return LENGTH.pack(len(body)) + body


def serve(prepare: Callable[[Any], Answer]) -> None:
    """Answer until the router closes the pipe.

    Args:
        prepare: returns what answers, from the settings; its time is not limited.
    """
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    try:
        first = _read(stdin)
        limits = first["limits"]
        _limit(limits["max_memory_bytes"], limits["max_stack_bytes"])
        answer = prepare(first["settings"])
        while True:
            question = _read(stdin)
            # Of processor time: a machine that is busy refuses nothing.
            signal.setitimer(signal.ITIMER_PROF, limits["max_cpu_s"])
            message = _answered(answer, question)
            signal.setitimer(signal.ITIMER_PROF, 0)
            stdout.write(message)
            stdout.flush()
    except (EOFError, BrokenPipeError):
        return


def _answered(answer: Answer, question: Any) -> bytes:
    try:
        try:
            return encode({"answer": answer(question)})
        except InvalidRequestError as error:
            return encode({"field": error.field, "description": error.description})
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _read(stream: BinaryIO) -> Any:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    return json.loads(stream.read(size))


def _limit(max_memory_bytes: int, max_stack_bytes: int) -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, max_memory_bytes),
        (resource.RLIMIT_STACK, max_stack_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    # Whatever the router does with it, here it ends the process.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
