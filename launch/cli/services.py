"""`quire router`, `quire scheduler`, `quire worker`: one service in this process."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import typer

from launch.cli.options import (
    ModelArgument,
    ReadyFd,
    Values,
    model_path,
    resolve_draft_model,
    takes_options,
)
from quire.contract.options import parse_values
from router.config import RouterConfig
from scheduler_svc.config import SchedulerConfig
from worker_svc.config import WorkerConfig
from worker_svc.isa import check_isa

Config = TypeVar("Config", RouterConfig, SchedulerConfig, WorkerConfig)
# On one machine the step goes first: what the router does with the tokens of a step can wait until
# the workers compute the next, while every core it takes from the hand-over delays all sequences.
ROUTER_NICENESS = 5


def _run(
    name: Literal["router", "scheduler", "worker"],
    config_type: type[Config],
    values: Values,
    ready_fd: int | None,
    find_serve: Callable[[], Callable[[Config], Awaitable[int]]],
    niceness: int = 0,
) -> None:
    """Run a service until it is asked to stop, and exit with its status.

    Args:
        name: bound to its log lines, and the extra that brings what it needs.
        config_type: its settings.
        values: of these settings, from the command line.
        ready_fd: pipe to the parent process, if that is `quire serve`. Its values, which come as
            JSON on stdin, go before those of the command line.
        find_serve: imports the service and returns its entry point. A child of `quire serve` does
            so before it reads its values, for which one that is held ready waits.
        niceness: of this process, where it shares a machine with those of `quire serve`.
    """
    # Read when grpc is imported. No suite of TLS 1.2 is left that works without a secret shared
    # beforehand, and none is: connections take TLS 1.3, whose suites are not meant here.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
    # Read when grpc is imported: what it logs is for grpc's developers, is not JSON, and a line of
    # it for each failed handshake would let any stranger write into the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from launch.extras import require
    from quire.contract.errors import ConfigError, QuireError

    try:
        require(f"quire {name}", name)
        if name == "worker":
            check_isa()
    except ConfigError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None
    import asyncio

    from launch.cluster.process import IMPORTED, SPARE_NAME, die_with_parent, show_as
    from quire import rpc
    from quire.observe import log, tracing

    log.configure(name)
    log.log_uncaught()
    if ready_fd is not None:
        die_with_parent(ready_fd)
        os.nice(niceness)
        show_as(SPARE_NAME)
        find_serve()
        rpc.report(ready_fd, IMPORTED)
        values = values | parse_values(config_type, json.load(sys.stdin))
        show_as(f"quire {name}")
    try:
        config = config_type(**values)
        log.configure(name, config.log_level, config.log_format)
        # Opened here, where files that cannot be used are reported in one line.
        _ = config.tls
        tracing.configure(name, config.otlp_endpoint)
        running = find_serve()(config)
    except QuireError as error:
        if ready_fd is None:
            typer.echo(f"error: {error.message}", err=True)
        rpc.announce(ready_fd, f"error {error.message}")
        raise typer.Exit(rpc.exit_status(error)) from None

    async def start() -> int:
        return await running

    try:
        status = asyncio.run(start())
    finally:
        tracing.tracer().stop()
    raise typer.Exit(status)


@takes_options(WorkerConfig)
def worker(options: Values, ready_fd: ReadyFd = None) -> None:
    """Run a worker: it waits for a scheduler, which names the model to load."""

    def find_serve() -> Callable[[WorkerConfig], Awaitable[int]]:
        # OpenMP, which reads this when torch is imported, would let torch's idle threads spin on
        # the cores that the kernels and the other services need.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # What its C++ half warns of, such as peers without a name, is not JSON, and no concern.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from worker_svc.device.open import open_device
        from worker_svc.service.server import serve

        # Opened here, where a device that is not there is reported in one line.
        return lambda config: serve(config, open_device(config.device), ready_fd)

    _run("worker", WorkerConfig, options, ready_fd, find_serve)


@takes_options(SchedulerConfig)
def scheduler(options: Values, model: ModelArgument = None, ready_fd: ReadyFd = None) -> None:
    """Run the scheduler of a cell: it loads the model into its workers and drives them."""

    def find_serve() -> Callable[[SchedulerConfig], Awaitable[int]]:
        from scheduler_svc.server import serve

        return lambda config: serve(config, ready_fd)

    options["model"] = str(model_path(model))
    resolve_draft_model(options)
    _run("scheduler", SchedulerConfig, options, ready_fd, find_serve)


@takes_options(RouterConfig)
def router(options: Values, model: ModelArgument = None, ready_fd: ReadyFd = None) -> None:
    """Run a router: it takes clients' requests. MODEL need only hold the tokenizer."""

    def find_serve() -> Callable[[RouterConfig], Awaitable[int]]:
        from router.server import serve

        return lambda config: serve(config, ready_fd)

    options["model"] = str(model_path(model))
    _run("router", RouterConfig, options, ready_fd, find_serve, ROUTER_NICENESS)
