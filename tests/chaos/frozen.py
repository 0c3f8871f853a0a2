"""A client that reads one message of a long stream and no more: `python -m tests.chaos.frozen`.

Its messages are long, so that what HTTP/2 holds for it is full before the stream ends.
"""

import asyncio
import sys

import grpc

from quire import SamplingParams
from quire.contract.inputs import GenerateInput
from quire.v1 import inference_pb2_grpc
from quire.wire.inference import generate_input_to_proto

PARAMS = SamplingParams(max_tokens=900, logprobs=20, ignore_eos=True)
# Else a client's window grows with what comes, as far as it has memory.
OPTIONS = (("grpc.http2.bdp_probe", 0),)


async def main(target: str, request_id: str) -> None:
    """Print a line when the first message has come, and wait."""
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        request = GenerateInput("The list class", PARAMS, request_id)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(generate_input_to_proto(request), wait_for_ready=True)
        await call.read()
        print("reads no more", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
