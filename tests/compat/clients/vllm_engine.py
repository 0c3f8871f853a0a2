"""The published stubs of vLLM's engine service, by token ids, which the gateway's side makes."""

import grpc
from harness import run
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc


def make(task):
    stub = vllm_engine_pb2_grpc.VllmEngineStub(grpc.insecure_channel(task["grpc"]))
    assert stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest()).healthy

    def answer(prompt, params):
        request = vllm_engine_pb2.GenerateRequest(
            text=prompt,
            sampling_params=vllm_engine_pb2.SamplingParams(skip_special_tokens=True, **params),
            stream=True,
        )
        *chunks, last = stub.Generate(request)
        token_ids = [token for each in chunks for token in each.chunk.token_ids]
        assert token_ids == list(last.complete.output_ids)
        return token_ids

    return answer


run(make)
