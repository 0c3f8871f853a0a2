"""Small clusters and their traffic."""

from dataclasses import replace
from typing import Any

from simulator.config import CellConfig, Lengths, Outage, SimulationConfig, TrafficConfig
from simulator.cost_model import CostModel

COST_MODEL = CostModel(
    "small",
    "made up",
    base_us=5000,
    token_us=50,
    sequence_us=20,
    context_us=0.2,
    pair_us=0.01,
    moved_block_us=50,
)

TRAFFIC = TrafficConfig(
    streams=60,
    duration_s=8.0,
    period_s=8.0,
    num_tenants=8,
    num_documents=60,
    mean_turns=2.0,
    think_s=0.5,
    system_prompt=Lengths(60, 0.5, 16, 200),
    document=Lengths(500, 0.5, 100, 900),
    message=Lengths(30, 0.5, 8, 100),
    answer=Lengths(60, 0.5, 4, 200),
)

CELL = CellConfig(
    COST_MODEL, num_blocks=600, block_size=16, max_num_batched_tokens=256, max_model_len=2048
)


def make_config(
    *,
    num_cells: int = 4,
    streams: int = 60,
    outages: tuple[Outage, ...] = (),
    cell: CellConfig = CELL,
    **options: Any,
) -> SimulationConfig:
    return SimulationConfig(
        traffic=replace(TRAFFIC, streams=streams),
        cell=cell,
        num_cells=num_cells,
        outages=outages,
        **{"num_routers": 3, "warmup_s": 1.0, "restart_s": 2.0, "seed": 5} | options,
    )
