"""Reads the streams of bench.growth in a process of its own, with as little work as gRPC allows.

Usage: python -m bench.growth_client ADDRESS NUM_STREAMS NUM_TOKENS. Messages are counted as bytes
and not parsed. Prints one line of JSON.
"""

import asyncio
import json
import statistics
import sys
import time

import grpc

from quire.contract.inputs import GenerateInput
from quire.contract.sampling_params import SamplingParams
from quire.wire.inference import generate_input_to_proto

METHOD = "/quire.v1.InferenceService/Generate"
PROMPT_TOKENS = 16


async def read(call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> list[float]:
    """Return when each message of a stream came, in seconds."""
    return [time.perf_counter() async for _ in call]


def prompt_of(index: int) -> list[int]:
    """Return the prompt of a stream."""
    return [3 + (7 * index + place) % 900 for place in range(PROMPT_TOKENS)]


def sampling_params(seed: int, num_tokens: int) -> SamplingParams:
    """Return the parameters of a stream of exactly so many tokens."""
    return SamplingParams(temperature=0.8, seed=seed, max_tokens=num_tokens, ignore_eos=True)


def request(index: int, num_tokens: int) -> bytes:
    """Return the serialised request of a stream."""
    generate = GenerateInput(prompt_of(index), sampling_params(index, num_tokens))
    return generate_input_to_proto(generate).SerializeToString()


async def run(address: str, num_streams: int, num_tokens: int) -> dict[str, float]:
    """Run streams side by side, each to its end.

    Returns:
        seconds from the first request to the last answer, and the median over streams of the time
        for each token after the first; CPU seconds of this process; messages.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        generate = channel.unary_stream(METHOD)
        began, cpu = time.perf_counter(), time.process_time()
        calls = [generate(request(index, num_tokens)) for index in range(num_streams)]
        streams = await asyncio.gather(*map(read, calls))
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    # The first message is Started, the last one Finished.
    decoding = [times[-1] - times[1] for times in streams]
    return {
        "seconds": seconds,
        "tpot_s": statistics.median(decoding) / max(1, num_tokens - 1),
        "cpu_s": cpu_s,
        "num_messages": sum(map(len, streams)),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
