"""An answer that fails: every API says whether the model's numbers or its request are the cause."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from quire.contract.errors import NO_TOKEN, NOT_FINITE
from quire.contract.outputs import FinishReason
from quire.facades import open_inference_pb2 as oip
from quire.facades import open_inference_pb2_grpc as oip_grpc
from quire.rpc import open_channel
from quire.wire.common import finish_reason_to_proto
from tests.fakes.fake_scheduler import MODEL
from tests.rpc.http_setup import HttpSetup, http_router
from tests.rpc.router_setup import PROMPT

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": PROMPT}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 20},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 20},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    async with http_router(tmp_path_factory.mktemp("model"), chat_template=template) as made:
        made.fake.num_tokens_until_error = 5
        yield made


@dataclass(frozen=True)
class Failure:
    """What an answer that fails shows."""

    reason: FinishReason
    message: str
    code: str
    response_code: str
    status: int


NUMBERS = Failure(FinishReason.ERROR, NOT_FINITE, "not_finite", "server_error", 500)
MASKS = Failure(FinishReason.NO_TOKEN, NO_TOKEN, "no_token", "invalid_prompt", 400)


@pytest.fixture(params=[NUMBERS, MASKS], ids=lambda failure: failure.code)
def failure(setup: HttpSetup, request: pytest.FixtureRequest) -> Failure:
    """The failure that the cell reports."""
    found: Failure = request.param
    setup.fake.failure = finish_reason_to_proto(found.reason)
    return found


@pytest.mark.parametrize("path", BODIES)
async def test_a_choice_has_the_error(setup: HttpSetup, failure: Failure, path: str) -> None:
    whole = (await setup.post(path, BODIES[path])).json()["choices"][0]
    events = await setup.events(path, BODIES[path])
    *others, last = [each.choice for each in events if each.data != "[DONE]"]
    for choice in (whole, last):
        assert choice["finish_reason"] == "error"
        assert choice["error"]["message"] == failure.message
        assert choice["error"]["code"] == failure.code
    assert not any("error" in choice for choice in others)


async def test_a_response_has_failed(setup: HttpSetup, failure: Failure) -> None:
    body = {"input": PROMPT, "max_output_tokens": 20}
    whole = (await setup.post("/v1/responses", body)).json()
    last = [each for each in await setup.events("/v1/responses", body) if each.data][-1].data
    assert last["type"] == "response.failed"
    for response in (whole, last["response"]):
        assert response["status"] == "failed"
        assert response["error"] == {
            "code": failure.response_code,
            "message": failure.message,
        }


async def test_a_message_is_an_error(setup: HttpSetup, failure: Failure) -> None:
    body = {"messages": MESSAGES, "max_tokens": 20}
    answer = await setup.post("/v1/messages", body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        failure.status,
        failure.message,
    )
    last = (await setup.events("/v1/messages", body))[-1]
    assert (last.event, last.data["error"]["message"]) == ("error", failure.message)


async def test_grpc_s_own_clients_read_the_reason(setup: HttpSetup, failure: Failure) -> None:
    answer = await setup.client.generate(PROMPT)
    assert answer.finish_reason is failure.reason
    request = oip.ModelInferRequest(model_name=MODEL.name)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.inputs[0].contents.bytes_contents.append(PROMPT.encode())
    request.parameters["stream"].bool_param = True
    async with open_channel(setup.address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        responses = [each async for each in stub.ModelStreamInfer(iter([request]))]
    assert responses[-1].error_message == failure.message
    assert responses[-1].infer_response.parameters["triton_final_response"].bool_param
