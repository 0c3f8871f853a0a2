"""Reads streams for bench.http_streams in a process of its own, with as little work as can be.

Usage: python -m bench.http_streams_client streams grpc|http ADDRESS NUM_STREAMS NUM_TOKENS, or
first GRPC_ADDRESS HTTP_ADDRESS ROUTER_PID NUM_REQUESTS. Messages are counted and not parsed. Prints
one line of JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any

import grpc

from bench.growth_client import METHOD, prompt_of, request, run, sampling_params
from bench.processor_time import cpu_s_of

PATH = "/v1/completions"
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def http_request(index: int, num_tokens: int) -> bytes:
    """Return the request of a stream: that of `growth_client.request` over HTTP."""
    params = sampling_params(index, num_tokens)
    body = {
        "prompt": prompt_of(index),
        "temperature": params.temperature,
        "seed": params.seed,
        "max_tokens": params.max_tokens,
        "ignore_eos": params.ignore_eos,
        "stream": True,
    }
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


class HttpReader(asyncio.Protocol):
    """One connection, whose streams are counted.

    Attributes:
        num_events: of the stream so far, its end among them.
        first_at: when its first event came, in seconds.
        ended: done when all of it has come.
    """

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, content: bytes) -> None:
        """Send a request."""
        self.num_events, self.first_at, self._tail = 0, 0.0, b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport.write(content)

    def data_received(self, data: bytes) -> None:
        """Count events."""
        num_events = data.count(b"data: ")
        if num_events and not self.num_events:
            self.first_at = time.perf_counter()
        self.num_events += num_events
        self._tail = (self._tail + data)[-len(_END) :]
        if self._tail == _END:
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a stream that has not come to its end."""
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("closed by the server"))


async def connect(address: str) -> HttpReader:
    """Return a new connection."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(HttpReader, host, int(port))
    return reader


async def run_http(address: str, num_streams: int, num_tokens: int) -> dict[str, float]:
    """Run streams side by side, each to its end; see `growth_client.run`."""
    readers = await asyncio.gather(*(connect(address) for _ in range(num_streams)))
    began, cpu = time.perf_counter(), time.process_time()
    for index, reader in enumerate(readers):
        reader.send(http_request(index, num_tokens))
    await asyncio.gather(*(reader.ended for reader in readers))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    for reader in readers:
        reader.transport.close()
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "num_messages": sum(reader.num_events for reader in readers),
    }


async def first_tokens(
    grpc_address: str, http_address: str, router_pid: int, num_requests: int
) -> dict[str, list[tuple[float, float]]]:
    """Send requests of one token, over gRPC and HTTP in turn.

    Returns:
        of each, milliseconds to its token, and of the router's CPU time.
    """
    found: dict[str, list[tuple[float, float]]] = {"grpc": [], "http": []}
    reader = await connect(http_address)
    async with grpc.aio.insecure_channel(grpc_address) as channel:
        await channel.channel_ready()
        generate = channel.unary_stream(METHOD)
        for index in range(num_requests):
            content, cpu = request(index, 1), cpu_s_of(router_pid)
            began = time.perf_counter()
            # Started, then the token.
            times = [time.perf_counter() async for _ in generate(content)]
            spent = cpu_s_of(router_pid) - cpu
            found["grpc"].append((1e3 * (times[1] - began), 1e3 * spent))
            content, cpu = http_request(index, 1), cpu_s_of(router_pid)
            began = time.perf_counter()
            reader.send(content)
            await reader.ended
            spent = cpu_s_of(router_pid) - cpu
            found["http"].append((1e3 * (reader.first_at - began), 1e3 * spent))
    reader.transport.close()
    return found


async def main(arguments: list[str]) -> dict[str, Any]:
    """Do what the command line asks for."""
    match arguments:
        case ["first", grpc_address, http_address, pid, number]:
            return await first_tokens(grpc_address, http_address, int(pid), int(number))
        case ["streams", "grpc", address, streams, tokens]:
            return await run(address, int(streams), int(tokens))
        case ["streams", "http", address, streams, tokens]:
            return await run_http(address, int(streams), int(tokens))
    raise SystemExit(__doc__)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1:]))))
