"""Whether the code that is installed now goes on with the streams of the code that runs."""

import asyncio
import json
import sys
from dataclasses import fields

import grpc

from launch.cluster.config import ClusterConfig
from quire.contract.engine_options import LoadOptions
from quire.contract.errors import UnavailableError
from quire.contract.options import defaults_of
from quire.contract.outputs import ModelIds
from quire.observe.log import get_logger
from quire.rpc import Role, TlsFiles, open_channel
from quire.rpc.call_errors import error_from_rpc
from quire.rpc.call_metadata import PROTOCOL_METADATA
from quire.v1 import worker_pb2, worker_pb2_grpc

DESCRIBE_TIMEOUT_S = 10.0

log = get_logger()


async def ids_in_use(worker: str, tls: TlsFiles | None) -> ModelIds | None:
    """Return the ids of the model that a worker has loaded; None if it has none or is away.

    Args:
        worker: its address.
        tls: certificate of an operator; None speaks in the clear.
    """
    async with open_channel(worker, tls, Role.WORKER) as channel:
        try:
            described = await worker_pb2_grpc.WorkerServiceStub(channel).Describe(
                worker_pb2.DescribeRequest(),
                timeout=DESCRIBE_TIMEOUT_S,
                metadata=PROTOCOL_METADATA,
            )
        except grpc.aio.AioRpcError as error:
            log.warning("ids_unknown", worker=worker, error=error_from_rpc(error).message)
            return None
    if not described.HasField("model"):
        return None
    return ModelIds(described.model.numerics_id, described.model.text_id)


async def ids_of_installed(config: ClusterConfig) -> ModelIds:
    """Return the ids that the model would have under the code that is installed now.

    Args:
        config: how the cluster loads it.

    Raises:
        UnavailableError: that code cannot serve the model; the message is one line.
    """
    command = [sys.executable, "-m", "launch.cli.main", "identify", "--json"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *_flags(config),
        str(config.model),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        *_, last = errors.decode(errors="replace").strip().splitlines() or [
            f"`quire identify` ended with status {process.returncode}"
        ]
        raise UnavailableError(last.removeprefix("error: "))
    return ModelIds(**json.loads(out))


def _flags(config: ClusterConfig) -> list[str]:
    """Return what decides about the ids as options of `quire identify`."""
    defaults, flags = defaults_of(LoadOptions), [f"--device={config.device_of(0)}"]
    for name in (each.name for each in fields(LoadOptions)):
        value, flag = getattr(config, name), f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value != defaults[name]:
            flags.append(f"{flag}={value}")
    return flags
