"""The configuration of a simulation."""

from dataclasses import dataclass
from enum import StrEnum

from quire.contract.errors import ConfigError
from quire.contract.options import Bounds
from simulator.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal numbers of tokens, cut at both ends.

    Attributes:
        mean: before they are cut.
        sigma: standard deviation of the logarithm.
        low: the smallest.
        high: the largest.
    """

    mean: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low < 1:
            raise ConfigError(f"low: must be at least 1, got {self.low}")
        if not self.low <= self.mean <= self.high:
            raise ConfigError(f"mean: must be in [{self.low}, {self.high}], got {self.mean}")


@dataclass(frozen=True, slots=True)
class TrafficConfig:
    """Which requests arrive, and when.

    Conversations begin at a rate that goes up and down like a day, and in bursts that ask about one
    document. Each has a tenant's system prompt, perhaps a document of that tenant, and turns: the
    prompt of a turn holds all turns and answers before it. Popularity of tenants and documents
    falls with their rank (Zipf).

    Attributes:
        streams: answers under way at the busiest moment, if every shared prefix is in a cache.
        peak_rate: conversations per second that begin at the day's peak, without bursts; None for
            the rate that makes `streams`.
        duration_s: how long requests arrive.
        period_s: length of the day; it begins at night.
        night: rate at night, as a share of the peak's.
        burst_factor: rate in a burst, as a multiple of the rate without it.
        burst_s: mean length of a burst.
        burst_gap_s: mean time between bursts.
        num_tenants: each with its own system prompt.
        num_documents: documents that conversations are about.
        document_share: share of the conversations that are about a document.
        zipf: exponent of popularity.
        mean_turns: mean number of turns of a conversation.
        think_s: mean time between an answer and the next turn.
        system_prompt: tokens of a tenant's system prompt.
        document: tokens of a document.
        message: tokens that a user adds in a turn.
        answer: tokens of an answer.
    """

    streams: int
    peak_rate: float | None = None
    duration_s: float = 20.0
    period_s: float = 20.0
    night: float = 0.4
    burst_factor: float = 1.5
    burst_s: float = 2.0
    burst_gap_s: float = 8.0
    num_tenants: int = 64
    num_documents: int = 1280
    document_share: float = 0.6
    zipf: float = 0.9
    mean_turns: float = 2.5
    think_s: float = 2.0
    system_prompt: Lengths = Lengths(400, 0.6, 32, 2000)
    document: Lengths = Lengths(1500, 0.6, 200, 4000)
    message: Lengths = Lengths(60, 0.8, 8, 1000)
    answer: Lengths = Lengths(250, 0.7, 8, 1024)

    def __post_init__(self) -> None:
        Bounds(1, 10**7).check("streams", self.streams)
        Bounds(0.1, 86400).check("duration_s", self.duration_s)
        Bounds(1, 86400).check("period_s", self.period_s)
        Bounds(0, 1).check("night", self.night)
        Bounds(1, 100).check("burst_factor", self.burst_factor)
        Bounds(1, 2**16).check("num_tenants", self.num_tenants)
        Bounds(1, 2**24).check("num_documents", self.num_documents)
        Bounds(0, 1).check("document_share", self.document_share)
        Bounds(1, 100).check("mean_turns", self.mean_turns)


@dataclass(frozen=True, slots=True)
class CellConfig:
    """A scheduler and its workers; names as in SchedulerConfig.

    Attributes:
        cost_model: of its workers.
        num_blocks: of the cache.
        block_size: tokens of a block.
        num_host_blocks: for swapped blocks.
        max_num_batched_tokens: tokens of one step.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens, prompt and output, of one sequence.
        max_steps_in_flight: 2 sends a step before the result of the one before it is back.
        enable_prefix_caching: let requests share the blocks of a prefix.
        watermark: share of the cache that must stay free when a request starts.
    """

    cost_model: CostModel
    num_blocks: int
    block_size: int = 32
    num_host_blocks: int = 0
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 256
    max_model_len: int = 8192
    max_steps_in_flight: int = 2
    enable_prefix_caching: bool = True
    watermark: float = 0.01


class OutageKind(StrEnum):
    """How cells end: at once, or after they have finished their requests."""

    KILL = "kill"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Outage:
    """Cells that end at the same time.

    Attributes:
        kind: how they end.
        num_cells: how many, chosen at random.
        at_s: when.
    """

    kind: OutageKind
    num_cells: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """A cluster, its traffic and what happens to it.

    Attributes:
        traffic: requests that arrive.
        cell: configuration of each cell.
        num_cells: number of cells.
        num_routers: number of routers; they share the requests evenly.
        outages: in any order.
        drain_timeout_s: after which a draining cell hands over what it still runs.
        restart_s: after which a cell that ended is back, with an empty cache.
        warmup_s: requests that arrive earlier are left out of the figures.
        ttft_slo_s: time to the first token within which an answer is good.
        tpot_slo_s: time for each further token within which an answer is good.
        heartbeat_s: interval between the reports of cells to routers.
        seed: of all random choices.
    """

    traffic: TrafficConfig
    cell: CellConfig
    num_cells: int
    num_routers: int = 4
    outages: tuple[Outage, ...] = ()
    drain_timeout_s: float = 30.0
    restart_s: float = 10.0
    warmup_s: float = 4.0
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.05
    heartbeat_s: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        Bounds(1, 10**5).check("num_cells", self.num_cells)
        Bounds(1, 10**3).check("num_routers", self.num_routers)
        Bounds(0, 2**64 - 1).check("seed", self.seed)
        Bounds(0, self.traffic.duration_s).check("warmup_s", self.warmup_s)
        for outage in self.outages:
            Bounds(1, self.num_cells).check(f"{outage.kind} cells", outage.num_cells)
            Bounds(0, self.traffic.duration_s).check(f"{outage.kind} time", outage.at_s)
