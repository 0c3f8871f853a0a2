"""llama.cpp: llama-server, built from the source that llama-cpp-python ships."""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from pathlib import Path

from bench.peers.adapters.gguf_model import write_gguf
from bench.peers.adapters.protocol import Engine, Options, serve

HOST = "127.0.0.1"
SERVER = Path(sys.prefix) / "llama" / "bin" / "llama-server"


class LlamaCpp(Engine):
    """A server over HTTP; it has as many slots, each with a cache of its own, as it was told."""

    def convert(self, options: Options) -> None:
        """Write the model as GGUF."""
        target = options.converted("llama-cpp", ".gguf")
        if not target.exists():
            write_gguf(Path(options.model), target, options.dtype)

    async def start(self, options: Options) -> str:
        """Start the server for one request at a time."""
        self._options = options
        self._slots = (0, 0)
        self._server: Process | None = None
        await self.prepare(1, options.max_model_len)
        source = next((Path(sys.prefix) / "source").glob("llama_cpp_python-*.tar.gz"))
        return source.name.removeprefix("llama_cpp_python-").removesuffix(".tar.gz")

    async def prepare(self, num_seqs: int, num_tokens: int) -> None:
        """Start the server anew if it has another number of slots, or too short ones."""
        slots, length = self._slots
        if slots == num_seqs and length >= num_tokens:
            return
        await self.stop()
        self._slots = num_seqs, num_tokens
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port = free.getsockname()[1]
        threads = str(self._options.num_threads)
        cache = "f32" if self._options.dtype == "float32" else "f16"
        self._server = await asyncio.create_subprocess_exec(
            str(SERVER),
            *("--model", str(self._options.converted("llama-cpp", ".gguf"))),
            *("--host", HOST, "--port", str(self._port)),
            *("--threads", threads, "--threads-batch", threads),
            *("--parallel", str(num_seqs), "--ctx-size", str(num_seqs * num_tokens)),
            *("--no-kv-unified", "--cache-type-k", cache, "--cache-type-v", cache),
            *("--cache-ram", "0", "--ctx-checkpoints", "0"),
        )
        while not await self._healthy():
            if self._server.returncode is not None:
                raise RuntimeError(f"llama-server ended with status {self._server.returncode}")
            await asyncio.sleep(0.05)

    async def _healthy(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port)
        except OSError:
            return False
        writer.write(f"GET /health HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
        status = await reader.readline()
        writer.close()
        return b" 200 " in status

    async def stream(self, prompt: list[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Stream an answer over a connection of its own, as events of the server."""
        body = json.dumps(
            {
                "prompt": prompt,
                "n_predict": max_tokens,
                "ignore_eos": True,
                "temperature": 0.0,
                "stream": True,
                "return_tokens": True,
            }
        ).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection(HOST, self._port, limit=2**24)
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        left = max_tokens
        while left and (line := await reader.readline()):
            # Each event is one chunk of the response, so that none is split by a chunk's length.
            if line.startswith(b"data: "):
                number = len(json.loads(line[len(b"data: ") :])["tokens"])
                left -= number
                yield number
        writer.close()

    async def stop(self) -> None:
        """Stop the server."""
        if self._server is not None and self._server.returncode is None:
            self._server.terminate()
            await self._server.wait()


if __name__ == "__main__":
    serve(LlamaCpp())
