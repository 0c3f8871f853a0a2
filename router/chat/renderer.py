"""The process that renders chat templates: `python -m router.chat.renderer`, started by the router.

What it runs is whatever a model's author and a client's messages make it do. So it has no secrets,
may write no file, and ends by itself: the kernel kills it when a rendering has used its time, in
whatever loop it is, and refuses it more memory than its limit. No thread could be ended like that.

Each message, in and out, is its length (4 bytes, big-endian) and JSON. The first one has the
templates and the limits; then each conversation is answered by its prompt, or by an error.
"""

import json
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from quire.contract.errors import InvalidRequestError
from router.chat.template_render import render

LENGTH = struct.Struct(">I")
# Its exit status.
OUT_OF_MEMORY = 3


def encode(content: Any) -> bytes:
    """Return a message."""
    body = json.dumps(content).encode()
    return LENGTH.pack(len(body)) + body


def _read(stream: BinaryIO) -> Any:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    return json.loads(stream.read(size))


def _limit(max_memory_bytes: int) -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, max_memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    # Whatever the router does with it, here it ends the process.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _answer(settings: Any, conversation: Any) -> dict[str, str]:
    source = settings["sources"][conversation["template"]]
    try:
        text = render(source, settings["special_tokens"], conversation, settings["max_bytes"])
        return {"text": text}
    except InvalidRequestError as error:
        return {"field": error.field, "description": error.description}


def main() -> None:
    """Answer until the router closes the pipe."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    try:
        settings = _read(stdin)
        _limit(settings["max_memory_bytes"])
        while True:
            conversation = _read(stdin)
            # Of processor time: a machine that is busy refuses nothing.
            signal.setitimer(signal.ITIMER_PROF, settings["max_cpu_s"])
            try:
                answer = encode(_answer(settings, conversation))
            except MemoryError:
                sys.exit(OUT_OF_MEMORY)
            signal.setitimer(signal.ITIMER_PROF, 0)
            stdout.write(answer)
            stdout.flush()
    except (EOFError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
