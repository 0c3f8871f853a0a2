"""A client written from the .proto files alone: nothing of Quire's own Python is used.

It makes its stubs from protos/ at start, asks the server what it serves (health, reflection), then
streams tokens. Any language with gRPC can do the same.

    pip install grpcio-tools grpcio-health-checking grpcio-reflection
    python examples/proto_only_client.py --target 127.0.0.1:50051 "The list class"
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent.parent / "protos"


def make_stubs(directory: Path) -> None:
    """Generate Python stubs of protos/quire/v1 in `directory` and make them importable.

    Raises:
        RuntimeError: the compiler refused the protos.
    """
    sources = sorted(str(path) for path in PROTOS.glob("quire/v1/*.proto"))
    arguments = [f"--proto_path={PROTOS}", f"--python_out={directory}"]
    if protoc.main(["protoc", *arguments, f"--grpc_python_out={directory}", *sources]):
        raise RuntimeError(f"protoc failed on {PROTOS}")
    # The stubs are named after their proto package. Made a regular package, first on the path, they
    # win over any installed one of that name.
    package = directory / "quire"
    for folder in (package, package / "v1"):
        (folder / "__init__.py").touch()
    sys.path.insert(0, str(directory))


def show_server(channel: grpc.Channel) -> None:
    """Print the server's health and the services that reflection lists."""
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(health.status)
    print(f"health: {status}")
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    for answer in reflection.ServerReflectionInfo(requests, timeout=10):
        for service in answer.list_services_response.service:
            print(f"service: {service.name}")


def generate(channel: grpc.Channel, prompt: str, max_tokens: int) -> None:
    """Stream a completion to the terminal."""
    common_pb2 = importlib.import_module("quire.v1.common_pb2")
    inference_pb2 = importlib.import_module("quire.v1.inference_pb2")
    inference_pb2_grpc = importlib.import_module("quire.v1.inference_pb2_grpc")
    request = inference_pb2.GenerateRequest(
        text=prompt,
        sampling_params=common_pb2.SamplingParams(temperature=0.0, max_tokens=max_tokens),
    )
    call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
    try:
        for response in call:
            match response.WhichOneof("event"):
                case "started":
                    print(f"prompt: {response.started.num_prompt_tokens} tokens")
                    print(prompt, end="", flush=True)
                case "delta":
                    print(response.delta.text, end="", flush=True)
                case "finished":
                    finished = response.finished
                    reason = common_pb2.FinishReason.Name(finished.finish_reason)
                    print(f"\nfinished: {finished.num_output_tokens} tokens, {reason}")
    finally:
        call.cancel()  # leaving early ends the request at the server


def main() -> int:
    """Run the client; return the exit status."""
    parser = argparse.ArgumentParser(description="Stream a completion, from the .proto alone.")
    parser.add_argument("prompt", nargs="?", default="The list class")
    parser.add_argument("--target", default="127.0.0.1:50051", help="address of a router")
    parser.add_argument("--max-tokens", type=int, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        make_stubs(Path(directory))
        with grpc.insecure_channel(arguments.target) as channel:
            try:
                show_server(channel)
                generate(channel, arguments.prompt, arguments.max_tokens)
            except grpc.RpcError as error:
                print(f"error: {error.code().name}: {error.details()}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
