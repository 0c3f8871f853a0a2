"""What would stop a cluster, found before anything starts: in milliseconds, with nothing loaded."""

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launch.cluster.config import ClusterConfig, LauncherName
from launch.weight_files import stored_tensors
from quire.contract.addresses import bare_host, join_address
from quire.contract.engine_options import GIB
from quire.contract.errors import ConfigError

# Of an element, by the names of safetensors.
_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
# Of 16 bits, what a weight takes; layers that stay as they are make it a little more.
_SHARES = {"w8a8": 0.5, "w8": 0.5, "w4": 0.25}


def check(config: ClusterConfig) -> None:
    """Check that a cluster can be started here, as far as files and the system tell at once.

    Raises:
        ConfigError: it cannot; names the option, and what to do.
    """
    check_ports(config)
    if config.launcher == LauncherName.LOCAL and config.load_format != "dummy":
        check_weights(config)


def check_weights(config: ClusterConfig) -> None:
    """Check that a model's files are whole, of known types, and fit the memory that is free.

    Raises:
        ConfigError: they are not, or do not; names file or tensor, and what to do.
    """
    if not (config.model / "config.json").is_file():
        return  # a GGUF file, whose head says more than is read here
    num_bytes = 0.0
    for tensor in stored_tensors(config.model):
        if tensor.dtype not in _BYTES:
            raise ConfigError(
                f"model: tensor {tensor.name} must be of one of {', '.join(_BYTES)}, "
                f"got {tensor.dtype}"
            )
        stored, wanted = _BYTES[tensor.dtype], _BYTES.get(_DTYPES.get(config.dtype, ""), 0)
        is_float = tensor.dtype in _FLOATS
        num_bytes += tensor.num_bytes * (wanted / stored if is_float and wanted else 1)
    num_bytes *= _SHARES.get(config.quantization, 1.0)
    free = free_memory_bytes()
    if on_cpu(config.device) and free is not None and num_bytes > free:
        raise ConfigError(
            f"model: must fit the memory that is free, {free / GIB:.1f} GiB, got "
            f"{num_bytes / GIB:.1f} GiB of weights; --quantization w8 or w4 holds them in less"
        )


def on_cpu(device: str) -> bool:
    """Return whether workers compute on the CPU, as far as that shows without asking CUDA."""
    return device == "cpu" or (device == "auto" and not any(Path("/dev").glob("nvidia[0-9]*")))


def free_memory_bytes() -> int | None:
    """Return the memory that can be had, within the limit of a container; None if none tells."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        [line] = (each for each in lines if each.startswith("MemAvailable:"))
        found.append(1024 * int(line.split()[1]))
    with suppress(OSError, ValueError):
        cgroup = Path("/sys/fs/cgroup")
        limit = int((cgroup / "memory.max").read_text())
        found.append(limit - int((cgroup / "memory.current").read_text()))
    return min(found, default=None)


def check_ports(config: ClusterConfig) -> None:
    """Check that the ports of a cluster are unlike, and free.

    Raises:
        ConfigError: two are the same, or one cannot be listened on.
    """
    taken: dict[tuple[str, int], str] = {}
    for name, host, port in _ports(config):
        place = (bare_host(host), port)
        if place in taken:
            raise ConfigError(f"{name}: must be another than {taken[place]}, got {port} for both")
        taken[place] = name
        _check_free(name, host, port)


def _ports(config: ClusterConfig) -> Iterator[tuple[str, str, int]]:
    """Yield name, host and number of each port that is chosen; 0 is none."""
    if config.port and not config.uds:
        yield "port", config.host, config.port
    if config.grpc_port:
        yield "grpc_port", config.host, config.grpc_port
    if config.control_port:
        yield "control_port", config.host, config.control_port
    if config.admin_port:
        num_workers = config.tensor_parallel_size if config.launcher == LauncherName.LOCAL else 0
        for place in range(2 + num_workers):
            what = ("", " of the scheduler", *(f" of worker {rank}" for rank in range(num_workers)))
            yield f"admin_port{what[place]}", config.admin_host, config.admin_port + place


def _check_free(name: str, host: str, port: int) -> None:
    bare = bare_host(host)
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError):
        raise ConfigError(f"host: must be an address of this machine, got {host}") from None
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        # As servers do: what a closed connection leaves behind is in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
            probe.listen()
        except OSError as error:
            raise ConfigError(_why(name, join_address(host, port), error)) from None


def _why(name: str, address: str, error: OSError) -> str:
    port = address.rpartition(":")[2]
    if error.errno == errno.EADDRINUSE:
        flag = name.partition(" ")[0].replace("_", "-")
        return (
            f"{name}: must be free, got {port}, where another process listens; "
            f"`--{flag} 0` takes a free one"
        )
    if error.errno == errno.EACCES:
        return f"{name}: must be one that this user may listen on, from 1024 on, got {port}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host: must be an address of this machine, got {address.rpartition(':')[0]}"
    return f"{name}: must be one that can be listened on, got {address}: {error.strerror}"
