"""Which services of other protocols a router has."""

from collections.abc import Callable

import grpc

from quire.facades import open_inference_pb2_grpc, vllm_engine_pb2_grpc
from router.cells.pool import CellPool
from router.facades.open_inference import OpenInferenceServicer
from router.facades.vllm_engine import VllmEngineServicer
from router.requests.inference import Inference

SERVICE_NAMES = ("inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine")


def add_facades(
    server: grpc.aio.Server, inference: Inference, cells: CellPool, is_serving: Callable[[], bool]
) -> None:
    """Add the services to a server that has not started.

    Args:
        server: of the router.
        inference: runs requests.
        cells: that compute them.
        is_serving: whether a cell is connected.
    """
    open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        OpenInferenceServicer(inference, is_serving), server
    )
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(
        VllmEngineServicer(inference, cells, is_serving), server
    )
