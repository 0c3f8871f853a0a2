"""A bad request is refused with the reason, and disturbs no other request."""

import asyncio

import grpc
import pytest
from google.protobuf.message import Message

from quire import AsyncClient, SamplingParams
from quire.rpc import open_channel
from quire.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.e2e.conftest import SharedClusters

GENERATE = "/quire.v1.InferenceService/Generate"


def text_request(text: str = "The list class", **params: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        text=text, sampling_params=common_pb2.SamplingParams(**params)
    )


def ids_request(*token_ids: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=token_ids))


# (request, status, what the message must name)
BAD_REQUESTS: dict[str, tuple[Message, grpc.StatusCode, tuple[str, ...]]] = {
    "empty text": (text_request(""), grpc.StatusCode.INVALID_ARGUMENT, ("prompt",)),
    "no prompt": (
        inference_pb2.GenerateRequest(),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("prompt",),
    ),
    "no ids": (ids_request(), grpc.StatusCode.INVALID_ARGUMENT, ("prompt",)),
    "over-long ids": (ids_request(*[5] * 100_000), grpc.StatusCode.INVALID_ARGUMENT, ("100000",)),
    "id out of vocabulary": (
        ids_request(1, 2**31, 3),
        grpc.StatusCode.INVALID_ARGUMENT,
        (str(2**31),),
    ),
    "1 MiB of text": (
        text_request("word " * (2**20 // 5 + 1)),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("prompt", str(2**20)),
    ),
    "over-long text": (
        text_request("word " * 60_000),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("prompt",),
    ),
    "unknown model": (
        inference_pb2.GenerateRequest(model="gpt-17", text="x"),
        grpc.StatusCode.NOT_FOUND,
        ("gpt-17",),
    ),
    "NaN temperature": (
        text_request(temperature=float("nan")),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("temperature", "nan"),
    ),
    "negative temperature": (
        text_request(temperature=-1.0),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("temperature", "-1"),
    ),
    "infinite min_p": (
        text_request(min_p=float("inf")),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("min_p", "inf"),
    ),
    "top_p zero": (text_request(top_p=0.0), grpc.StatusCode.INVALID_ARGUMENT, ("top_p", "0")),
    "top_k zero": (text_request(top_k=0), grpc.StatusCode.INVALID_ARGUMENT, ("top_k", "0")),
    "max_tokens zero": (
        text_request(max_tokens=0),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("max_tokens", "0"),
    ),
    "max_tokens absurd": (
        text_request(max_tokens=2**32 - 1),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("max_tokens", str(2**32 - 1)),
    ),
    "stop strings too many": (
        text_request(stop=["x"] * 1000),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("stop", "1000"),
    ),
    "stop string empty": (
        text_request(stop=[""]),
        grpc.StatusCode.INVALID_ARGUMENT,
        ("stop", "0"),
    ),
}


async def test_bad_requests_are_named_and_leave_other_streams_alone(
    shared_clusters: SharedClusters,
) -> None:
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=120, ignore_eos=True)
    cluster = shared_clusters.get()
    async with AsyncClient(cluster.router.address) as client:
        pids = [service.pid for service in cluster.services]
        alone = await client.generate("The with statement", params)

        bystander = asyncio.create_task(client.generate("The with statement", params))
        async with open_channel(cluster.router.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for name, (request, code, words) in BAD_REQUESTS.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in stub.Generate(request):
                        pytest.fail(f"{name}: was answered")
                assert caught.value.code() == code, f"{name}: {caught.value.details()}"
                details = caught.value.details() or ""
                for word in words:
                    assert word in details, f"{name}: {word!r} not in {details!r}"

            raw = channel.unary_stream(GENERATE)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in raw(b"\xff\xff\xff\xff not a message"):
                    pytest.fail("a malformed message was answered")
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

        assert await bystander == alone_but_for_its_id(alone, bystander.result().request_id)
        again = await client.generate("The with statement", params)
        assert again.token_ids == alone.token_ids
        assert [service.pid for service in cluster.services] == pids


def alone_but_for_its_id(completion, request_id):
    """The same completion under another request id."""
    import dataclasses

    return dataclasses.replace(completion, request_id=request_id)
