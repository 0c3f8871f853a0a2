"""A real router on a socket, with a fake scheduler: what it refuses, and how."""

import asyncio
import math
from contextlib import aclosing

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from quire import AsyncClient, Client, SamplingParams
from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestExistsError,
    UnavailableError,
)
from quire.contract.outputs import (
    Delta,
    FinishReason,
    Started,
)
from quire.rpc import open_channel
from quire.v1 import common_pb2, inference_pb2, inference_pb2_grpc, scheduler_pb2
from router.text.tokenize import Tokenizer
from tests.fakes.small_tokenizers import byte_level
from tests.rpc.router_setup import (
    PROMPT,
    echoed,
    running_router,
)
from tests.rpc.test_cells import TOO_LARGE

GENERATE = "/quire.v1.InferenceService/Generate"


async def test_id_in_use_is_refused(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        task = asyncio.create_task(setup.client.generate(PROMPT, request_id="mine"))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        with pytest.raises(RequestExistsError, match="mine"):
            await setup.client.generate(PROMPT, request_id="mine")
        await setup.fake.release()
        assert (await task).finish_reason is FinishReason.LENGTH


async def test_refusals_of_the_scheduler_reach_the_client(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.refuse_next(
            scheduler_pb2.Refused(
                reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL,
                message="at most 7 requests wait",
                retry_after_ms=1500,
            )
        )
        with pytest.raises(OverloadedError, match="at most 7") as full:
            await setup.client.generate(PROMPT)
        assert full.value.retry_after_ms == 1500
        setup.fake.refuse_next(
            scheduler_pb2.Refused(
                reason=scheduler_pb2.REFUSAL_REASON_INVALID,
                field="prompt",
                message="at most 64 tokens fit the cache, got 99",
            )
        )
        with pytest.raises(InvalidRequestError) as invalid:
            await setup.client.generate(PROMPT)
        assert invalid.value.field == "prompt"
        assert invalid.value.description == "at most 64 tokens fit the cache, got 99"
        assert (await setup.client.generate(PROMPT)).finish_reason is FinishReason.LENGTH


async def test_a_max_tokens_that_nobody_gave_is_asked_for(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        for max_tokens, reason in ((None, "must be given, .*: must be at"), (4, "must be at")):
            setup.fake.refuse_next(TOO_LARGE)
            with pytest.raises(InvalidRequestError, match=f"^max_tokens: {reason} most 3, got 4"):
                await setup.client.generate(PROMPT, SamplingParams(n=2, max_tokens=max_tokens))


def raw(text: str = "x", **params: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        text=text, sampling_params=common_pb2.SamplingParams(**params)
    )


BAD_REQUESTS = {
    "empty text": (raw(""), "prompt", "0"),
    "no prompt": (inference_pb2.GenerateRequest(), "prompt", "0"),
    "too long": (raw("word " * 400), "prompt", "255"),
    "over 1 MiB": (raw("x" * (2**20 + 1)), "prompt", str(2**20)),
    "out of vocabulary": (
        inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[1000])),
        "prompt",
        "1000",
    ),
    "NaN": (raw(temperature=math.nan), "temperature", "nan"),
    "negative": (raw(temperature=-0.5), "temperature", "-0.5"),
    "top_k 0": (raw(top_k=0), "top_k", "0"),
    "max_tokens 0": (raw(max_tokens=0), "max_tokens", "0"),
    "max_tokens absurd": (raw(max_tokens=2**32 - 1), "max_tokens", str(2**32 - 1)),
    "stop token out of vocabulary": (raw(stop_token_ids=[1000]), "stop_token_ids", "1000"),
    "empty stop string": (raw(stop=[""]), "stop", "256"),
    "stop strings too many": (raw(stop=["x"] * 17), "stop", "16"),
}


async def test_bad_requests_name_field_and_limit_and_disturb_no_other(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        bystander = asyncio.create_task(
            setup.client.generate(PROMPT, SamplingParams(max_tokens=200))
        )
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        async with open_channel(setup.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for name, (request, field, limit) in BAD_REQUESTS.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in stub.Generate(request):
                        pytest.fail(f"{name}: was answered")
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, name
                status = rpc_status.from_call(caught.value)
                assert status is not None
                bad_request = error_details_pb2.BadRequest()
                assert any(detail.Unpack(bad_request) for detail in status.details), name
                violation = bad_request.field_violations[0]
                assert violation.field == field, name
                assert limit in violation.description, f"{name}: {violation.description}"
                await setup.fake.step()

            malformed = channel.unary_stream(GENERATE)
            for junk in (b"\xff" * 20, b"\x08", b"\x1a\x05ab", b"\x1a\x02\xff\xfe"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in malformed(junk):
                        pytest.fail("a malformed message was answered")
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                await setup.fake.step()

        with pytest.raises(ModelNotFoundError, match=r"gpt-17.*served: fake"):
            await setup.client.generate(PROMPT, model="gpt-17")
        with pytest.raises(InvalidRequestError, match="larger"):
            await setup.client.generate("x" * (8 * 2**20))
        with pytest.raises(InvalidRequestError, match="-1"):
            await setup.client.generate([3, -1])
        await setup.fake.release()
        assert (await bystander).token_ids == echoed(200)
        assert len(setup.fake.submitted) == 1


async def test_one_mebibyte_is_refused_without_delaying_a_stream(tmp_path) -> None:
    """Exactly the limit: it is tokenized, in a thread, and refused by its tokens."""
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        async with aclosing(setup.client.stream(PROMPT, SamplingParams(max_tokens=None))) as stream:
            assert isinstance(await anext(stream), Started)
            big = asyncio.create_task(setup.client.generate("word " * (2**20 // 5)))
            steps_meanwhile = 0
            while not big.done() and steps_meanwhile < 200:
                await setup.fake.step()
                assert isinstance(await anext(stream), Delta)
                steps_meanwhile += 1
            with pytest.raises(InvalidRequestError, match="at most 255 tokens"):
                await big
            assert steps_meanwhile > 3


async def test_texts_waiting_for_the_tokenizer_are_bounded(tmp_path) -> None:
    async with running_router(tmp_path, max_queued_texts=2) as setup:
        tokenizer = Tokenizer(byte_level(), num_threads=1, max_queued=2)
        calls = [tokenizer.encode("word " * 10_000) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        tokenizer.close()
        assert [isinstance(r, OverloadedError) for r in results] == [False] * 2 + [True] * 3
        assert await setup.client.tokenize("word")


async def test_no_router_is_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await client.generate("x")
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError):
        client.generate("x")
