"""Whether the code that is installed now goes on with the streams of the code that runs."""

import asyncio
import json
import sys
from collections.abc import Sequence
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
# Of a command line that is not understood.
USAGE_ERROR = 2

log = get_logger()


async def ids_in_use(workers: Sequence[str], tls: TlsFiles | None) -> ModelIds | None:
    """Return the ids of the model that workers have loaded; None if none that answers has one.

    Args:
        workers: their addresses.
        tls: certificate of an operator; None speaks in the clear.
    """
    found = await asyncio.gather(*(_ids_of_worker(each, tls) for each in workers))
    return next(filter(None, found), None)


async def _ids_of_worker(worker: str, tls: TlsFiles | None) -> ModelIds | None:
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


async def ids_of_installed(config: ClusterConfig) -> ModelIds | None:
    """Return the ids that the model would have under the code that is installed now.

    Args:
        config: how the cluster loads it.

    Returns:
        None if that is a release without `quire identify`, or with other options.

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
    if process.returncode == USAGE_ERROR:
        return None
    said = errors.decode(errors="replace").splitlines()
    if process.returncode:
        reported = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        raise UnavailableError(
            reported[-1] if reported else f"`quire identify` ended with {process.returncode}"
        )
    return parse_ids(out.decode(errors="replace"))


def parse_ids(text: str) -> ModelIds:
    """Return what `quire identify --json` of this release or another has printed.

    Raises:
        UnavailableError: it is something else.
    """
    try:
        printed = json.loads(text)
        return ModelIds(**{each.name: str(printed[each.name]) for each in fields(ModelIds)})
    except (ValueError, TypeError, LookupError):
        raise UnavailableError(f"`quire identify` must print ids, got {text[:100]!r}") from None


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
