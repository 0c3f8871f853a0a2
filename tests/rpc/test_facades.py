"""Services of other protocols on a router: the same tokens, their own shapes, refusals."""

import json
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from quire import SamplingParams
from quire.facades import open_inference_pb2 as oip
from quire.facades import open_inference_pb2_grpc as oip_grpc
from quire.facades import vllm_engine_pb2 as engine
from quire.facades import vllm_engine_pb2_grpc as engine_grpc
from quire.rpc import open_channel
from router.facades import open_inference
from tests.fakes.fake_scheduler import MODEL
from tests.rpc.router_setup import PROMPT, PROMPT_IDS, echoed, running_router, text_of

NUM_TOKENS = 30
ENCODED = PROMPT.encode()


def tensor(
    name: str, value: Any, datatype: str = "BYTES"
) -> oip.ModelInferRequest.InferInputTensor:
    contents = oip.InferTensorContents()
    field = {"BYTES": contents.bytes_contents, "BOOL": contents.bool_contents}
    values = value if isinstance(value, (list, tuple)) else [value]
    field.get(datatype, contents.int64_contents).extend(values)
    return oip.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=[len(values)], contents=contents
    )


def infer(*inputs: Any, prompt: Any = ENCODED, **params: Any) -> oip.ModelInferRequest:
    given = json.dumps({"max_tokens": NUM_TOKENS, "seed": 5, **params}).encode()
    text = (tensor("text_input", prompt),) if prompt is not None else ()
    return oip.ModelInferRequest(
        model_name=MODEL.name,
        id="mine",
        inputs=[*text, tensor("sampling_parameters", given), *inputs],
    )


def outputs_of(response: oip.ModelInferResponse) -> dict[str, list[Any]]:
    """Return the elements of each output."""
    found: dict[str, list[Any]] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype == "INT64":
            elements: list[Any] = list(struct.unpack(f"<{len(raw) // 8}q", raw))
        else:
            elements = []
            begin = 0
            while begin < len(raw):
                (length,) = struct.unpack_from("<I", raw, begin)
                begin += 4 + length
                elements.append(raw[begin - length : begin].decode())
        assert list(output.shape) == [len(elements)]
        found[output.name] = elements
    return found


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
async def test_infer_gives_the_tokens_of_generate(tmp_path, raw: bool) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        request = infer(tensor("exclude_input_in_output", True, "BOOL"))
        if raw:
            for each in request.inputs:
                held = each.contents.bytes_contents
                text = struct.pack("<I", len(held[0])) + held[0] if held else b"\1"
                request.raw_input_contents.append(text)
                each.ClearField("contents")
        expected = await setup.client.generate(
            PROMPT, SamplingParams(max_tokens=NUM_TOKENS, seed=5)
        )

        response = await oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)

        assert (response.id, response.model_name) == ("mine", MODEL.name)
        assert outputs_of(response) == {
            "text_output": [expected.text],
            "finish_reason": ["length"],
            "token_ids": list(expected.token_ids),
        }


async def test_a_text_begins_with_its_prompt_unless_it_is_excluded(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        answer = text_of(echoed(NUM_TOKENS))
        from_text = await stub.ModelInfer(infer())
        from_ids = await stub.ModelInfer(
            infer(tensor("token_ids", PROMPT_IDS, "INT64"), prompt=None)
        )
        assert outputs_of(from_text)["text_output"] == [PROMPT + answer]
        assert outputs_of(from_ids)["text_output"] == [PROMPT + answer]


async def test_only_outputs_that_are_asked_for(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        request = infer()
        request.outputs.add(name="finish_reason")
        response = await oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert outputs_of(response) == {"finish_reason": ["length"]}


async def test_a_stream_answers_each_of_its_requests(tmp_path, monkeypatch) -> None:
    """With room for two at a time, of five, one of which is wrong."""
    monkeypatch.setattr(open_inference, "MAX_STREAM_REQUESTS", 2)

    async def requests() -> AsyncIterator[oip.ModelInferRequest]:
        for i in range(4):
            request = infer(tensor("stream", True, "BOOL"), max_tokens=10 + i)
            request.id = str(i)
            yield request
        yield infer(tensor("stream", True, "BOOL"), n=2)
        # Not streamed; and what clients of Triton ask for to be told of the end.
        request = infer(max_tokens=3)
        request.id = "whole"
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        yield request

    pieces: dict[str, list[dict[str, list[Any]]]] = {}
    errors: dict[str, str] = {}
    final: list[str] = []
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        async for message in stub.ModelStreamInfer(requests()):
            response = message.infer_response
            is_final = response.parameters["triton_final_response"]
            assert is_final.HasField("bool_param")
            if message.error_message:
                assert is_final.bool_param
                errors[response.id] = message.error_message
                continue
            pieces.setdefault(response.id, []).append(outputs_of(response))
            if is_final.bool_param:
                final.append(response.id)

    assert errors == {"mine": "n: must be 1 with stream, got 2"}
    assert sorted(final) == ["0", "1", "2", "3", "whole"]
    assert len(pieces["whole"]) == 1
    for i in range(4):
        received = pieces[str(i)]
        assert "".join(each["text_output"][0] for each in received) == text_of(echoed(10 + i))
        assert [t for each in received for t in each["token_ids"]] == list(echoed(10 + i))
        assert received[-1]["finish_reason"] == ["length"]


@pytest.mark.parametrize(
    ("change", "details"),
    [
        (lambda r: setattr(r, "id", "x" * 129), "id: must be at most 128 characters, got 129"),
        (lambda r: r.inputs.pop(0), "inputs: must have either text_input or token_ids"),
        (lambda r: r.inputs.append(r.inputs[0]), "text_input: must be given once"),
        (lambda r: r.inputs.add(name="image"), "inputs: must be of text_input, .*, got image"),
        (lambda r: r.outputs.add(name="logits"), "outputs: must be of text_output, .*, got logits"),
        (lambda r: r.inputs[0].shape.append(7), r"text_input: must have the shape \[1\]"),
        (
            lambda r: setattr(r.inputs[0], "datatype", "FP32"),
            "text_input: must be of datatype BYTES",
        ),
        (
            lambda r: r.raw_input_contents.append(b""),
            "raw_input_contents: must have 2 items, got 1",
        ),
        (
            lambda r: r.raw_input_contents.extend([b"\xff\xff\xff\xffx", b""]),
            "text_input: must hold",
        ),
        (lambda r: r.raw_input_contents.extend([b"xy", b""]), "text_input: must have elements"),
        (lambda r: r.inputs.append(tensor("stream", True, "BOOL")), "stream: must be false"),
        (
            lambda r: r.inputs[1].contents.bytes_contents.__setitem__(0, b"[" * 60_000),
            "sampling_parameters: must be a JSON object",
        ),
        (
            lambda r: r.inputs[1].contents.bytes_contents.__setitem__(0, b'{"heat": 1}'),
            "sampling_parameters: must be fields of quire.v1.SamplingParams, got: .*heat",
        ),
        (
            lambda r: r.parameters["temperature"].__setattr__("double_param", -1.0),
            "temperature: must be in",
        ),
    ],
)
async def test_a_bad_request_is_refused_by_its_field(tmp_path, change, details: str) -> None:
    request = infer()
    change(request)
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=details) as refused:
            await oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not setup.fake.submitted


async def test_metadata_and_readiness(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        assert (await stub.ServerLive(oip.ServerLiveRequest())).live
        assert (await stub.ServerReady(oip.ServerReadyRequest())).ready
        assert (await stub.ModelReady(oip.ModelReadyRequest(name=MODEL.name))).ready
        assert not (await stub.ModelReady(oip.ModelReadyRequest(name="other"))).ready
        assert (await stub.ServerMetadata(oip.ServerMetadataRequest())).name == "quire"
        described = await stub.ModelMetadata(oip.ModelMetadataRequest(name=MODEL.name))
        assert "text_input" in {each.name for each in described.inputs}
        config = (await stub.ModelConfig(oip.ModelConfigRequest(name=MODEL.name))).config
        assert config.model_transaction_policy.decoupled
        assert [each.name for each in config.input] == [each.name for each in described.inputs]
        assert [each.name for each in config.output] == [each.name for each in described.outputs]
        for call, request in (
            (stub.ModelMetadata, oip.ModelMetadataRequest(name="other")),
            (stub.ModelConfig, oip.ModelConfigRequest(name="other")),
            (stub.ModelStatistics, oip.ModelStatisticsRequest(name="other")),
            (stub.ModelMetadata, oip.ModelMetadataRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_statistics_count_what_any_client_did(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        [before] = (await stub.ModelStatistics(oip.ModelStatisticsRequest())).model_stats
        assert (before.name, before.inference_count, before.last_inference) == (MODEL.name, 0, 0)
        began_ms = int(1e3 * time.time())
        await stub.ModelInfer(infer())
        await setup.client.generate(PROMPT, SamplingParams(max_tokens=2))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ModelInfer(infer(temperature=-1.0))
        [after] = (
            await stub.ModelStatistics(oip.ModelStatisticsRequest(name=MODEL.name))
        ).model_stats
        stats = after.inference_stats
        assert after.inference_count == stats.success.count == stats.queue.count == 2
        assert after.last_inference >= began_ms
        assert 0 < stats.queue.ns <= stats.success.ns
        assert stats.compute_infer.ns == stats.success.ns - stats.queue.ns


def ask(stream: bool, **params: Any) -> engine.GenerateRequest:
    return engine.GenerateRequest(
        request_id="mine",
        tokenized=engine.TokenizedInput(input_ids=PROMPT_IDS),
        sampling_params=engine.SamplingParams(max_tokens=NUM_TOKENS, **params),
        stream=stream,
    )


async def test_the_engine_service_gives_the_tokens_of_generate(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = engine_grpc.VllmEngineStub(channel)
        (whole,) = [each async for each in stub.Generate(ask(False))]
        streamed = [each async for each in stub.Generate(ask(True))]
        submitted = setup.fake.submitted[0].params

    assert submitted.temperature == 1.0
    assert (submitted.top_p, submitted.top_k, submitted.repetition_penalty) == (1.0, 0, 1.0)
    assert tuple(whole.complete.output_ids) == echoed(NUM_TOKENS)
    assert whole.complete.finish_reason == "length"
    assert whole.complete.prompt_tokens == len(PROMPT_IDS)
    chunks = [each.chunk for each in streamed[:-1]]
    assert tuple(t for each in chunks for t in each.token_ids) == echoed(NUM_TOKENS)
    assert chunks[-1].completion_tokens == NUM_TOKENS
    assert streamed[-1] == whole


async def test_the_engine_service_names_the_token_that_stopped_it(tmp_path) -> None:
    stop = PROMPT_IDS[7]
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = engine_grpc.VllmEngineStub(channel)
        request = ask(False, stop=[text_of(PROMPT_IDS[4:6])])
        (by_text,) = [each async for each in stub.Generate(request)]
        (by_token,) = [each async for each in stub.Generate(ask(False, stop_token_ids=[stop]))]
    assert by_text.complete.matched_stop_str == text_of(PROMPT_IDS[4:6])
    assert by_text.complete.finish_reason == "stop"
    assert by_token.complete.matched_token_id == stop


async def test_the_engine_service_gives_the_vector_of_a_prompt(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = engine_grpc.VllmEngineStub(channel)
        prompt = engine.TokenizedInput(original_text=PROMPT, input_ids=PROMPT_IDS)
        answer = await stub.Embed(engine.EmbedRequest(request_id="mine", tokenized=prompt))
        [vector] = (await setup.client.embed(PROMPT)).vectors
        assert answer.embedding == vector.tolist()
        assert answer.prompt_tokens == len(PROMPT_IDS)
        assert answer.embedding_dim == MODEL.embedding_size
        assert setup.fake.submitted[0].request_id == "mine"
        with pytest.raises(grpc.aio.AioRpcError, match="tokenized: at least 1 token, got 0"):
            await stub.Embed(engine.EmbedRequest())


@pytest.mark.parametrize(
    ("field", "value"),
    [("mm_inputs", b"\x0a\x00"), ("kv_transfer_params_json", "{}"), ("data_parallel_rank", 0)],
)
async def test_what_the_engine_service_lacks_is_refused(tmp_path, field: str, value: Any) -> None:
    request = ask(False)
    setattr(request, field, value)
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: must be absent"):
            async for _ in engine_grpc.VllmEngineStub(channel).Generate(request):
                pass


async def test_the_engine_service_describes_itself(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = engine_grpc.VllmEngineStub(channel)
        assert (await stub.HealthCheck(engine.HealthCheckRequest())).healthy
        model = await stub.GetModelInfo(engine.GetModelInfoRequest())
        assert (model.served_model_name, model.vocab_size) == (MODEL.name, MODEL.vocab_size)
        assert (await stub.GetServerInfo(engine.GetServerInfoRequest())).server_type == "quire"
        assert len((await stub.GetLoads(engine.GetLoadsRequest())).loads) == 1
        assert not (await stub.GetLoads(engine.GetLoadsRequest(dp_rank=3))).loads


async def test_abort_ends_a_request_of_the_engine_service(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        setup.fake.hold()
        stub = engine_grpc.VllmEngineStub(channel)
        call = stub.Generate(ask(False))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        await stub.Abort(engine.AbortRequest(request_ids=["mine", "another"]))
        assert (await call.read()).complete.finish_reason == "abort"


async def test_a_stream_of_no_messages_is_refused_as_any_other(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        infer_any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = infer_any(iter([b"\xff"]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
