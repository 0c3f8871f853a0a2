"""What `quire simulate` prints: the policies side by side."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from simulator.config import SimulationConfig
from simulator.metrics import PERCENTILES, Summary


def print_setting(console: Console, config: SimulationConfig) -> None:
    """Print the configuration of the simulation."""
    traffic, cell = config.traffic, config.cell
    console.print(
        f"{config.num_cells:,} cells behind {config.num_routers} routers, "
        f"{traffic.streams:,} streams at the busiest moment"
    )
    console.print(f"  cell       {cell.cost_model.name} ({cell.cost_model.source})")
    console.print(
        f"             {cell.num_blocks:,} blocks of {cell.block_size} tokens, "
        f"{cell.max_num_batched_tokens:,} tokens a step"
    )
    console.print(
        f"  traffic    {traffic.duration_s:g} s, with a day compressed to {traffic.period_s:g} s; "
        f"{traffic.num_tenants:,} tenants, {traffic.num_documents:,} documents"
    )
    for outage in config.outages:
        console.print(f"  {outage.kind:<10} {outage.num_cells:,} cells at {outage.at_s:g} s")
    console.print(
        f"  targets    first token within {1e3 * config.ttft_slo_s:g} ms, "
        f"each further one within {1e3 * config.tpot_slo_s:g} ms\n"
    )


def print_summaries(console: Console, summaries: Sequence[Summary]) -> None:
    """Print a column for each policy."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for summary in summaries:
        table.add_column(summary.policy, justify="right", no_wrap=True)
    for name, value in _ROWS:
        table.add_row(name, *(value(summary) for summary in summaries))
    console.print(table)


def _percentile_rows() -> list[tuple[str, Callable[[Summary], str]]]:
    def row(field: str, percentile: int) -> Callable[[Summary], str]:
        return lambda summary: f"{getattr(summary, field)[f'p{percentile}']:,.0f}"

    return [
        (f"{title}, p{percentile}, ms", row(field, percentile))
        for title, field in (("time to first token", "ttft_ms"), ("time per token", "tpot_ms"))
        for percentile in PERCENTILES
    ]


_ROWS: list[tuple[str, Callable[[Summary], str]]] = [
    ("goodput, answers/s", lambda each: f"{each.goodput_per_s:,.1f}"),
    ("  of requests/s", lambda each: f"{each.answered_per_s:,.1f}"),
    ("  share", lambda each: f"{each.good_share:.1%}"),
    ("tokens/s", lambda each: f"{each.tokens_per_s:,.0f}"),
    *_percentile_rows(),
    ("prefix hit rate", lambda each: f"{each.prefix_hit_rate:.1%}"),
    ("preemptions", lambda each: f"{each.preemptions:,}"),
    ("requests moved", lambda each: f"{each.moved_requests:,}"),
    ("imbalance of cells", lambda each: f"{each.imbalance:.1%}"),
    ("most streams at once", lambda each: f"{each.peak_streams:,}"),
    ("requests answered", lambda each: f"{each.num_requests:,}"),
    ("simulated, s", lambda each: f"{each.simulated_s:,.0f}"),
    ("computed in, s", lambda each: f"{each.wall_s:,.0f}"),
    ("  CPU time, s", lambda each: f"{each.cpu_s:,.0f}"),
    ("  simulated s per s", lambda each: f"{each.simulated_s_per_wall_s:,.2f}"),
]
