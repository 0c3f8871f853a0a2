"""`quire router`, `quire scheduler`, `quire worker`: one service in this process."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from launch.cli import options
from launch.cli.options import (
    DType,
    KvCacheDType,
    LoadFormat,
    LogLevel,
    PreemptionModeName,
    RoutingPolicyName,
)

# On one machine the step goes first: what the router does with the tokens of a step can wait until
# the workers compute the next, while every core it takes from the hand-over delays all sequences.
ROUTER_NICENESS = 5
DEFAULT_SCHEDULER = "127.0.0.1:50052"


def _run(
    name: str,
    log_level: LogLevel,
    ready_fd: int | None,
    make: Callable[[], Callable[[int | None], Awaitable[int]]],
    niceness: int = 0,
    otlp_endpoint: str | None = None,
) -> None:
    """Run a service until it is told to stop, and exit with its status.

    Args:
        name: bound to its log lines.
        log_level: of its log.
        ready_fd: pipe to the parent process, if that is `quire serve`.
        make: checks the configuration and returns the service's entry point.
        niceness: of this process, where it shares a machine with those of `quire serve`.
        otlp_endpoint: where its spans go.
    """
    # Read when grpc is imported. No suite of TLS 1.2 is left that works without a secret shared
    # beforehand, and none is: connections take TLS 1.3, whose suites are not meant here.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
    # Read when grpc is imported: what it says below is for grpc's developers, is not JSON, and a
    # line of it for each failed handshake would let any stranger write into the log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from launch.cluster.process import die_with_parent
    from quire import rpc
    from quire.contract.errors import QuireError
    from quire.observe import log, tracing

    if ready_fd is not None:
        die_with_parent(ready_fd)
        os.nice(niceness)
    log.configure(name, log_level.value)
    try:
        tracing.configure(name, otlp_endpoint)
        entry = make()
    except QuireError as error:
        if ready_fd is None:
            typer.echo(f"error: {error.message}", err=True)
        rpc.announce(ready_fd, f"error {error.message}")
        raise typer.Exit(1) from None

    async def start() -> int:
        return await entry(ready_fd)

    try:
        status = asyncio.run(start())
    finally:
        tracing.tracer().stop()
    raise typer.Exit(status)


def worker(
    host: options.Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 50053,
    device: options.Device = "auto",
    num_threads: options.NumThreads = None,
    announce_to: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Scheduler to tell where this worker is."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Which worker of --announce-to's this is, from --rank-base.")
    ] = None,
    rank_base: Annotated[
        int,
        typer.Option(
            help="What the first worker has as --rank: 1 where an orchestrator counts another pod "
            "of the group as 0."
        ),
    ] = 0,
    advertise_host: Annotated[
        str | None,
        typer.Option(help="Where others reach this worker.", show_default="--host"),
    ] = None,
    tls_dir: options.TlsDir = None,
    insecure: options.Insecure = False,
    admin_port: options.AdminPort = None,
    admin_host: options.AdminHost = "127.0.0.1",
    otlp_endpoint: options.OtlpEndpoint = None,
    log_level: options.LogLevelOption = LogLevel.INFO,
    ready_fd: options.ReadyFd = None,
) -> None:
    """Run a worker: it waits for a scheduler to tell it which model to load."""

    def make() -> Callable[[int | None], Awaitable[int]]:
        # OpenMP, which reads this when torch is imported, would let torch's idle threads spin on
        # the cores that the kernels and the other services need.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # What its C++ half warns of, such as peers without a name, is not JSON, and no concern.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from quire.contract.errors import ConfigError
        from quire.rpc import Role
        from worker_svc.config import Announcement, WorkerConfig
        from worker_svc.device.base import open_device
        from worker_svc.service.server import serve

        if (announce_to is None) != (rank is None) or (advertise_host and announce_to is None):
            raise ConfigError(
                "announce_to and rank belong together, and advertise_host to both; "
                f"got {announce_to}, {rank} and {advertise_host}"
            )
        config = WorkerConfig(
            tls=options.open_tls(tls_dir, Role.WORKER),
            insecure=insecure,
            announcement=(
                None
                if announce_to is None or rank is None
                else Announcement(announce_to, rank - rank_base, advertise_host or host)
            ),
            host=host,
            port=port,
            device=device,
            num_threads=num_threads,
            log_level=log_level.value,
            admin=options.admin_config(admin_port, admin_host),
        )
        # Opened here, where a device that is not there is told in one line.
        return partial(serve, config, open_device(config.device))

    _run("worker", log_level, ready_fd, make, otlp_endpoint=otlp_endpoint)


def scheduler(
    model: options.ModelArgument = None,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="HOST:PORT",
            help="A worker, in order of rank; repeat.",
            show_default="127.0.0.1:50053",
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            help="Workers that announce themselves, where no --worker is named.",
        ),
    ] = None,
    distributed_timeout_s: options.DistributedTimeoutS = 30.0,
    host: options.Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 50052,
    served_model_name: options.ServedModelName = None,
    dtype: options.DTypeOption = DType.AUTO,
    load_format: options.LoadFormatOption = LoadFormat.SAFETENSORS,
    kv_cache_dtype: options.KvCacheDTypeOption = KvCacheDType.AUTO,
    invariant: options.Invariant = False,
    enforce_eager: options.EnforceEager = False,
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.9,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = 256,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 2048,
    max_waiting: options.MaxWaiting = 4096,
    max_steps_in_flight: options.MaxStepsInFlight = 2,
    enable_prefix_caching: options.EnablePrefixCaching = True,
    block_size: options.BlockSize = 16,
    kv_cache_gib: options.KvCacheGib = None,
    num_gpu_blocks_override: options.NumGpuBlocksOverride = None,
    preemption_mode: options.PreemptionModeOption = PreemptionModeName.AUTO,
    swap_space: options.SwapSpace = None,
    priority_ageing_s: options.PriorityAgeingS = 60.0,
    drain_timeout_s: Annotated[
        float,
        typer.Option(
            help="How long a cell that is taken out of service, by SIGTERM or `quire drain`, "
            "finishes what it has; the rest then continues on other cells."
        ),
    ] = 30.0,
    tls_dir: options.TlsDir = None,
    insecure: options.Insecure = False,
    admin_port: options.AdminPort = None,
    admin_host: options.AdminHost = "127.0.0.1",
    otlp_endpoint: options.OtlpEndpoint = None,
    log_level: options.LogLevelOption = LogLevel.INFO,
    ready_fd: options.ReadyFd = None,
) -> None:
    """Run the scheduler of a cell: it loads the model into its workers and drives them."""

    def make() -> Callable[[int | None], Awaitable[int]]:
        from launch.cluster.cluster import embedded_model
        from quire.contract.errors import ConfigError
        from quire.rpc import Role
        from scheduler_svc.config import SchedulerConfig
        from scheduler_svc.server import serve

        addresses = tuple(workers or ())
        if not addresses and tensor_parallel_size is None:
            addresses = ("127.0.0.1:50053",)
        if tensor_parallel_size not in (None, len(addresses)) and addresses:
            raise ConfigError(
                f"tensor_parallel_size: must be {len(addresses)}, the number of workers named, "
                f"got {tensor_parallel_size}"
            )
        directory = Path(model).resolve() if model else embedded_model()
        config = SchedulerConfig(
            host=host,
            port=port,
            model=str(directory),
            served_model_name=served_model_name or directory.name,
            dtype=dtype.value,
            load_format=load_format.value,
            invariant=invariant,
            kv_cache_dtype=kv_cache_dtype.value,
            enforce_eager=enforce_eager,
            gpu_memory_utilization=gpu_memory_utilization,
            workers=addresses,
            announced_ranks=0 if addresses else tensor_parallel_size or 0,
            distributed_timeout_s=distributed_timeout_s,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting=max_waiting,
            max_steps_in_flight=max_steps_in_flight,
            enable_prefix_caching=enable_prefix_caching,
            block_size=block_size,
            kv_cache_memory_bytes=options.gib_to_bytes(kv_cache_gib),
            num_gpu_blocks_override=num_gpu_blocks_override,
            preemption_mode=preemption_mode.value,
            swap_space_bytes=options.gib_to_bytes(swap_space),
            priority_ageing_s=priority_ageing_s,
            drain_timeout_s=drain_timeout_s,
            tls=options.open_tls(tls_dir, Role.SCHEDULER),
            insecure=insecure,
            log_level=log_level.value,
            admin=options.admin_config(admin_port, admin_host),
        )
        return lambda fd: serve(config, fd)

    _run("scheduler", log_level, ready_fd, make, otlp_endpoint=otlp_endpoint)


def router(
    model: options.ModelArgument = None,
    schedulers: Annotated[
        list[str] | None,
        typer.Option(
            "--scheduler",
            metavar="HOST:PORT",
            help="The scheduler of a cell; repeat.",
            show_default="127.0.0.1:50052, without --scheduler-dns",
        ),
    ] = None,
    scheduler_dns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:PORT",
            help="A name each of whose addresses is a cell; cells come and go with them. Repeat.",
            show_default=False,
        ),
    ] = None,
    dns_interval_s: Annotated[
        float, typer.Option(help="How often these names are resolved.")
    ] = 5.0,
    routing_policy: Annotated[
        RoutingPolicyName,
        typer.Option(
            help="How a cell is chosen: by the prefixes in its cache and its load, by load alone, "
            "or one after the other."
        ),
    ] = RoutingPolicyName.PREFIX_AWARE,
    host: options.Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 50051,
    api_keys: options.ApiKeys = None,
    drain_delay_s: Annotated[
        float,
        typer.Option(
            help="How long a router that gets SIGTERM still takes requests while it says that it "
            "does not serve, for load balancers to hear of it."
        ),
    ] = 0.0,
    drain_timeout_s: Annotated[
        float, typer.Option(help="How long it then finishes what runs.")
    ] = 30.0,
    client_certificates: Annotated[
        bool,
        typer.Option(
            "--client-certificates/--no-client-certificates",
            help="Whether clients must show a certificate; without, give them API keys.",
        ),
    ] = True,
    tls_dir: options.TlsDir = None,
    insecure: options.Insecure = False,
    admin_port: options.AdminPort = None,
    admin_host: options.AdminHost = "127.0.0.1",
    otlp_endpoint: options.OtlpEndpoint = None,
    log_level: options.LogLevelOption = LogLevel.INFO,
    ready_fd: options.ReadyFd = None,
) -> None:
    """Run a router: it takes clients' requests. MODEL_DIR need only hold the tokenizer."""

    def make() -> Callable[[int | None], Awaitable[int]]:
        from launch.cluster.cluster import embedded_model
        from quire.rpc import Role
        from router.config import RouterConfig
        from router.server import serve

        config = RouterConfig(
            host=host,
            port=port,
            model=model or str(embedded_model()),
            schedulers=tuple(schedulers or (() if scheduler_dns else (DEFAULT_SCHEDULER,))),
            scheduler_dns=tuple(scheduler_dns or ()),
            dns_interval_s=dns_interval_s,
            routing_policy=routing_policy.value,
            tls=options.open_tls(tls_dir, Role.ROUTER),
            client_certificates=client_certificates,
            insecure=insecure,
            api_keys=api_keys,
            drain_delay_s=drain_delay_s,
            drain_timeout_s=drain_timeout_s,
            log_level=log_level.value,
            admin=options.admin_config(admin_port, admin_host),
        )
        return lambda fd: serve(config, fd)

    _run("router", log_level, ready_fd, make, ROUTER_NICENESS, otlp_endpoint)
