"""`quire serve`: a whole cluster, on this machine or with workers on others."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from launch.cli import options
from launch.cli.options import DType, KvCacheDType, LoadFormat, LogLevel, PreemptionModeName
from launch.cluster.config import LauncherName


def serve(
    model: options.ModelArgument = None,
    host: options.Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the router; 0 takes a free one.")] = 50051,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="Workers that share the model.")
    ] = 1,
    served_model_name: options.ServedModelName = None,
    dtype: options.DTypeOption = DType.AUTO,
    load_format: options.LoadFormatOption = LoadFormat.SAFETENSORS,
    device: options.Device = "auto",
    kv_cache_dtype: options.KvCacheDTypeOption = KvCacheDType.AUTO,
    invariant: options.Invariant = False,
    distributed_timeout_s: options.DistributedTimeoutS = 30.0,
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
    num_threads: options.NumThreads = None,
    api_keys: options.ApiKeys = None,
    launcher: Annotated[
        LauncherName,
        typer.Option(
            help="Where workers come from: 'local' starts them here, 'ray' in a Ray cluster, "
            "'static' takes running ones."
        ),
    ] = LauncherName.LOCAL,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="HOST:PORT",
            help="A running worker, in order of rank; repeat. For --launcher static.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            help="A running Ray cluster. For --launcher ray.",
            show_default="a Ray of its own, here",
        ),
    ] = None,
    ray_cpus_per_worker: Annotated[
        int, typer.Option(help="CPUs that Ray sets aside for each worker.")
    ] = 1,
    tls_dir: options.TlsDir = None,
    insecure: options.Insecure = False,
    admin_port: Annotated[
        int | None,
        typer.Option(
            help="Port for metrics and probes of the router; the scheduler takes the next, then "
            "the workers. 0 takes free ones.",
            show_default="none",
        ),
    ] = None,
    admin_host: options.AdminHost = "127.0.0.1",
    otlp_endpoint: options.OtlpEndpoint = None,
    log_level: options.LogLevelOption = LogLevel.WARNING,
) -> None:
    """Serve a model: start workers, scheduler and router, keep them up, stop them on Ctrl-C."""
    from launch.cli.console import Progress, print_ready
    from launch.cluster.cluster import Cluster, ClusterConfig, embedded_model
    from quire.contract.errors import QuireError
    from quire.observe import log

    log.configure("supervisor", log_level.value)
    optional = {
        "--served-model-name": served_model_name,
        "--max-model-len": max_model_len,
        "--kv-cache-gib": kv_cache_gib,
        "--num-gpu-blocks-override": num_gpu_blocks_override,
        "--swap-space": swap_space,
    }
    scheduler_args = [
        *["--dtype", dtype.value, "--load-format", load_format.value],
        *["--block-size", str(block_size), "--kv-cache-dtype", kv_cache_dtype.value],
        *["--max-num-seqs", str(max_num_seqs), "--max-waiting", str(max_waiting)],
        *["--max-steps-in-flight", str(max_steps_in_flight)],
        "--enable-prefix-caching" if enable_prefix_caching else "--no-enable-prefix-caching",
        *["--max-num-batched-tokens", str(max_num_batched_tokens)],
        *["--preemption-mode", preemption_mode.value],
        *["--priority-ageing-s", str(priority_ageing_s)],
        *["--gpu-memory-utilization", str(gpu_memory_utilization)],
        *["--distributed-timeout-s", str(distributed_timeout_s)],
        *(["--invariant"] if invariant else []),
        *(["--enforce-eager"] if enforce_eager else []),
    ]
    for name, value in optional.items():
        if value is not None:
            scheduler_args += [name, str(value)]

    async def run() -> None:
        config = ClusterConfig(
            model=Path(model).resolve() if model else embedded_model(),
            host=host,
            port=port,
            tensor_parallel_size=tensor_parallel_size,
            device=device,
            scheduler_args=tuple(scheduler_args),
            num_threads=num_threads,
            api_keys=api_keys,
            log_level=log_level.value,
            admin=options.admin_config(admin_port, admin_host),
            launcher=launcher,
            workers=tuple(workers or ()),
            ray_address=ray_address,
            ray_cpus_per_worker=ray_cpus_per_worker,
            tls_dir=tls_dir,
            insecure=insecure,
            otlp_endpoint=otlp_endpoint,
        )
        await _serve(config)

    async def _serve(config: ClusterConfig) -> None:
        from quire.rpc import stop_signal

        stopped = asyncio.create_task(stop_signal())
        with Progress() as progress:
            cluster = Cluster(config, progress.say)
            starting = asyncio.create_task(cluster.start())
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return
            starting.result()
        try:
            await print_ready(cluster)
            running = asyncio.create_task(cluster.wait())
            await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            await cluster.stop()

    try:
        asyncio.run(run())
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
