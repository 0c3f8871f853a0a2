"""`quire simulate`: many cells under load, without any."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.cells.choice import RoutingPolicy

if TYPE_CHECKING:
    from launch.cli.console import Progress as ConsoleProgress
    from simulator.config import Outage, OutageKind, SimulationConfig
    from simulator.simulation import SimulationProgress

TELL_INTERVAL_S = 2.0


def simulate(
    cells: Annotated[int, typer.Option(help="Schedulers with their workers.")] = 64,
    streams: Annotated[
        int | None,
        typer.Option(
            help="Answers under way at the busiest moment, if every shared prefix were cached.",
            show_default="what keeps the cells busy",
        ),
    ] = None,
    policy: Annotated[
        list[RoutingPolicy] | None,
        typer.Option(help="Of the routers; repeat to compare.", show_default="all"),
    ] = None,
    routers: Annotated[int, typer.Option(help="That share the requests.")] = 4,
    cost_model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Cells: '405b-h100x8' (computed), 'demo-cpu' (measured), or what --fit wrote.",
        ),
    ] = "405b-h100x8",
    num_blocks: Annotated[
        int | None,
        typer.Option(help="Blocks of each cell's KV cache.", show_default="that of the cell"),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens computed in one step.", show_default="that of the cell"),
    ] = None,
    duration: Annotated[float, typer.Option(help="Seconds for which requests come.")] = 20.0,
    period: Annotated[float, typer.Option(help="Seconds that a day is compressed to.")] = 20.0,
    burst_factor: Annotated[
        float, typer.Option(help="Rate of arrivals in a burst; 1 for no bursts.")
    ] = 1.5,
    tenants: Annotated[int, typer.Option(help="With a system prompt each.")] = 64,
    documents_per_cell: Annotated[
        float, typer.Option(help="Documents asked about, for each cell.")
    ] = 20.0,
    kill_cells: Annotated[
        list[str] | None,
        typer.Option(metavar="N@T", help="Kill N cells at second T; repeat.", show_default=False),
    ] = None,
    drain_cells: Annotated[
        list[str] | None,
        typer.Option(metavar="N@T", help="Drain N cells at second T; repeat.", show_default=False),
    ] = None,
    restart_s: Annotated[
        float, typer.Option("--restart-s", help="Seconds until a cell that went is back, empty.")
    ] = 10.0,
    drain_timeout_s: Annotated[
        float, typer.Option("--drain-timeout-s", help="Seconds in which a draining cell finishes.")
    ] = 30.0,
    ttft_slo_ms: Annotated[
        float, typer.Option("--ttft-slo-ms", help="A good answer begins within this.")
    ] = 1000.0,
    tpot_slo_ms: Annotated[
        float, typer.Option("--tpot-slo-ms", help="A good answer takes this for each token.")
    ] = 50.0,
    warmup: Annotated[
        float, typer.Option(help="Seconds whose requests are not reported on.")
    ] = 4.0,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    processes: Annotated[
        int | None, typer.Option(help="To compute with.", show_default="cores of this machine")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here.", show_default=False)
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the runs here: .svg, .png.", show_default=False),
    ] = None,
    fit_file: Annotated[
        Path | None,
        typer.Option(
            "--fit",
            help="Measure real steps on this machine's CPU, one thread, write a cost model here, "
            "and end.",
            show_default=False,
        ),
    ] = None,
    fit_model: Annotated[
        Path | None,
        typer.Option(help="Model to measure.", show_default="the embedded demo model"),
    ] = None,
) -> None:
    """Simulate many cells under load: real routing policy and scheduler, made-up workers.

    What a step takes comes from a cost model; a day, with bursts, is compressed to seconds.
    """
    from dataclasses import replace

    from launch.extras import require, require_plot
    from quire.contract.errors import QuireError

    try:
        require("quire simulate", "simulator")
        if fit_file is not None:
            require("quire simulate --fit", "worker")
            _fit(fit_model, fit_file)
            return
        from simulator.config import OutageKind, SimulationConfig, TrafficConfig
        from simulator.presets import find_preset

        if plot_file is not None:
            require_plot(plot_file, "simulator")
        preset = find_preset(cost_model)
        cell = replace(
            preset.cell,
            num_blocks=num_blocks or preset.cell.num_blocks,
            max_num_batched_tokens=max_num_batched_tokens or preset.cell.max_num_batched_tokens,
        )
        config = SimulationConfig(
            traffic=TrafficConfig(
                streams=streams or cells * preset.streams_per_cell,
                duration_s=duration,
                period_s=period,
                burst_factor=burst_factor,
                num_tenants=tenants,
                num_documents=max(1, round(documents_per_cell * cells)),
            ),
            cell=cell,
            num_cells=cells,
            num_routers=routers,
            outages=(
                *_outages(OutageKind.KILL, kill_cells or []),
                *_outages(OutageKind.DRAIN, drain_cells or []),
            ),
            drain_timeout_s=drain_timeout_s,
            restart_s=restart_s,
            warmup_s=min(warmup, duration),
            ttft_slo_s=ttft_slo_ms / 1e3,
            tpot_slo_s=tpot_slo_ms / 1e3,
            seed=seed,
        )
        _run(
            config,
            policy or list(RoutingPolicy),
            processes or os.cpu_count() or 1,
            json_file,
            plot_file,
        )
    except QuireError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from None


def _run(
    config: "SimulationConfig",
    policies: list[RoutingPolicy],
    num_processes: int,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Run each policy, and show what came of them."""
    import json

    from rich.console import Console

    from launch.cli.console import Progress
    from simulator.plot import plot
    from simulator.report import print_setting, print_summaries
    from simulator.simulation import simulate

    console = Console(highlight=False)
    print_setting(console, config)
    runs = []
    with Progress() as progress:
        for policy in policies:
            printer = _Printer(progress, policy, config.traffic.duration_s)
            runs.append(simulate(config, policy, num_processes, printer.show))
    summaries = [run.summary() for run in runs]
    print_summaries(console, summaries)
    if json_file is not None:
        report = {
            str(run.policy): {"summary": summary.as_dict(), "series": run.series().as_dict()}
            for run, summary in zip(runs, summaries, strict=True)
        }
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    if plot_file is not None:
        plot(runs, plot_file)


class _Printer:
    """Says how far a run has come, now and then."""

    def __init__(self, console: "ConsoleProgress", policy: str, duration_s: float) -> None:
        self._console = console
        self._policy = policy
        self._duration_s = duration_s
        self._said_at = 0.0

    def show(self, progress: "SimulationProgress") -> None:
        """Take how far a run is."""
        now = time.monotonic()
        if now - self._said_at >= TELL_INTERVAL_S:
            self._said_at = now
            self._console.say(
                f"{self._policy}: {progress.simulated_s:.1f} of {self._duration_s:g} s, "
                f"{progress.num_open:,} streams, {progress.num_answered:,} answered"
            )


def _outages(kind: "OutageKind", texts: list[str]) -> "list[Outage]":
    """Read outages given as N@T.

    Raises:
        ConfigError: one is not.
    """
    from quire.contract.errors import ConfigError
    from simulator.config import Outage

    outages = []
    for text in texts:
        number, _, at_s = text.partition("@")
        try:
            outages.append(Outage(kind, int(number), float(at_s)))
        except ValueError:
            raise ConfigError(f"--{kind}-cells: N@T, such as 10@15, got {text!r}") from None
    return outages


def _fit(model: Path | None, path: Path) -> None:
    """Measure steps of a model, and write and print what fits them."""
    from launch.cli.console import Progress
    from launch.cluster.supervisor import embedded_model
    from simulator.cost_model import save
    from simulator.fit import fit, fit_error
    from simulator.measure import measure_steps

    model = model or embedded_model()
    with Progress() as progress:
        steps = measure_steps(model, progress.say)
    # Every other step is kept from the fit, to hold it against.
    fitted = fit(f"{model.name}, one CPU thread", "measured", steps[::2])
    error = fit_error(fitted, steps[1::2])
    save(fitted, path)
    for name, value in fitted.prices.items():
        typer.echo(f"{name:<16} {value:12,.4f}")
    typer.echo(
        f"{len(steps[1::2])} other steps: error {error.median:.1%} in the median, "
        f"{error.p90:.1%} in nine of ten, {error.bias:+.1%} on average"
    )
