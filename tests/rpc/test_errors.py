"""Every error of the tree, sent by a real server, arrives as what was raised."""

from collections.abc import AsyncIterator

import grpc
import pytest

from quire.contract import errors
from quire.contract.errors import InvalidRequestError, OverloadedError, QuireError
from quire.rpc import Server, open_channel
from quire.rpc.call_errors import error_from_rpc
from quire.v1 import inference_pb2, inference_pb2_grpc

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, QuireError)
]


def make(kind: type[QuireError]) -> QuireError:
    if issubclass(kind, InvalidRequestError):
        return kind("top_p", "must be in (0, 1], got 2.0")
    if issubclass(kind, OverloadedError):
        return kind("at most 4096 requests wait", 1500)
    return kind(f"{kind.__name__}: must be so, got ü")


class Failing(inference_pb2_grpc.InferenceServiceServicer):
    """Ends each call with the error whose class is named as the request is."""

    async def Abort(  # noqa: N802
        self, request: inference_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.AbortResponse:
        raise make(getattr(errors, request.request_id))

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield inference_pb2.GenerateResponse()
        raise make(getattr(errors, request.request_id))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_arrives_as_it_was_raised(kind: type[QuireError]) -> None:
    raised = make(kind)
    server = Server(["quire.v1.InferenceService"])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Failing(), server.grpc_server)
    address = await server.start("127.0.0.1", 0)
    try:
        async with open_channel(address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Abort(inference_pb2.AbortRequest(request_id=kind.__name__))
            calls = [caught.value]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(
                    inference_pb2.GenerateRequest(request_id=kind.__name__)
                ):
                    pass
            calls.append(caught.value)
    finally:
        await server.stop(0)
    for call in calls:
        arrived = error_from_rpc(call)
        assert type(arrived) is kind
        assert (arrived.message, arrived.args) == (raised.message, raised.args)
        assert vars(arrived) == vars(raised)
        assert call.code().name == kind.code
