"""`make bench-growth`: what the control plane costs as the streams of a 125M Llama grow.

For 1 to 256 streams: tokens/s, time per token and its roof, CPU time of router, scheduler and
worker for each token, and tokens/s of the same model and requests in one process without a control
plane. Streams are read by a process of their own. Then what a server of grpc.aio takes that does
nothing but write as many messages. `--report` writes the table and a picture into the docs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from bench.engine import Engine
from bench.growth_client import prompt_of, sampling_params
from bench.peers.environments import BUILD, ROOT
from bench.peers.probes import probe, processor
from bench.peers.report import replace_section
from bench.peers.shapes import SHAPES, write_model
from bench.peers.statistics import roof_seconds
from bench.peers.workloads import Request
from bench.processor_time import cpu_s_of
from launch.cluster.supervisor import Cluster, ClusterConfig
from quire.observe import log
from quire.rpc.options import MAX_MESSAGE_BYTES, server_options

SHAPE = SHAPES["125M"]
# Streams: tokens of each, so that all of it takes a minute.
LENGTHS = {1: 64, 4: 64, 16: 48, 64: 32, 256: 8}
BEGIN, END = "<!-- bench-growth -->\n", "<!-- /bench-growth -->\n"
BARE_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class Point:
    """One number of streams.

    Attributes:
        streams: that run side by side.
        tokens_per_s: of the cluster, from the first request to the last answer.
        tpot_ms: median over the streams of the time for each token after the first.
        roof_tpot_ms: least time of a step on this machine.
        engine_tokens_per_s: of scheduler and worker in one process.
        router_us, scheduler_us, worker_us, client_us: CPU time for each token after the first.
    """

    streams: int
    tokens_per_s: float
    tpot_ms: float
    roof_tpot_ms: float
    engine_tokens_per_s: float
    router_us: float
    scheduler_us: float
    worker_us: float
    client_us: float

    @property
    def control_share(self) -> float:
        """CPU time of router and scheduler for a step, over the time of a step."""
        return (self.router_us + self.scheduler_us) * self.streams / (1e3 * self.tpot_ms)


async def read_streams(address: str, streams: int, tokens: int) -> dict[str, float]:
    """Read streams in another process and return what it measured."""
    client = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "bench.growth_client", address, str(streams), str(tokens)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await client.communicate()
    if client.returncode:
        raise RuntimeError(f"the client of {address} ended with status {client.returncode}")
    measured: dict[str, float] = json.loads(output)
    return measured


async def measure_cluster(model: Path) -> tuple[float, dict[int, dict[str, float]]]:
    """Return the seconds until a cluster is ready, and the figures of each number of streams."""
    began = time.perf_counter()
    cluster = Cluster(ClusterConfig(model=model, port=None, grpc_port=0, device="cpu"))
    await cluster.start()
    ready_s = time.perf_counter() - began
    address = cluster.router.address
    pids = {service.name.partition(" ")[0]: service.pid for service in cluster.services}
    points = {}

    async def run(streams: int, tokens: int) -> dict[str, float]:
        before = {name: cpu_s_of(pid) for name, pid in pids.items()}
        measured = await read_streams(address, streams, tokens)
        return measured | {name: cpu_s_of(pid) - before[name] for name, pid in pids.items()}

    try:
        for streams, tokens in LENGTHS.items():
            await run(streams, 4)  # records graphs
            short, long = await run(streams, 1), await run(streams, tokens)
            num_tokens = streams * (tokens - 1)
            names = {"cpu_s": "client_us"} | {name: f"{name}_us" for name in pids}
            points[streams] = {
                key: 1e6 * (long[name] - short[name]) / num_tokens for name, key in names.items()
            }
            points[streams] |= {
                "tokens_per_s": streams * tokens / long["seconds"],
                "tpot_ms": 1e3 * long["tpot_s"],
            }
            print(f"{streams} streams: {points[streams]}", file=sys.stderr)
    finally:
        await cluster.stop()
    return ready_s, points


def measure_engine(model: Path) -> dict[int, float]:
    """Return tokens/s of scheduler and worker in one process, by the number of streams."""
    engine = Engine(model, num_blocks=4096)
    speeds = {}
    for streams, tokens in LENGTHS.items():
        prompts = [prompt_of(index) for index in range(streams)]
        engine.run(prompts, sampling_params(0, 4))  # records graphs
        run = engine.run(prompts, sampling_params(0, tokens))
        speeds[streams] = streams * tokens / run.seconds
    return speeds


def roof_tpot_s(streams: int, tokens: int, bytes_per_s: float, flop_per_s: float) -> float:
    """Return the least time of a decode step: that of all steps less the first, of the prompts."""

    def seconds(length: int) -> float:
        requests = [Request(prompt_of(index), length) for index in range(streams)]
        return roof_seconds(requests, SHAPE, 2.0, 2.0, bytes_per_s, flop_per_s)

    return (seconds(tokens) - seconds(1)) / (tokens - 1)


async def measure_bare(streams: int = 64, messages: int = 200) -> float:
    """Return the CPU time, in us, in which a server of grpc.aio writes a message to a stream."""
    wake: list[asyncio.Semaphore] = []

    async def write(request: bytes, context: grpc.aio.ServicerContext) -> None:
        mine = asyncio.Semaphore(0)
        wake.append(mine)
        for _ in range(messages):
            await mine.acquire()
            await context.write(b"as long as one token's")

    server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES))
    handler = grpc.unary_stream_rpc_method_handler(write)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("quire.v1.InferenceService", {"Generate": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reading = asyncio.create_task(read_streams(f"127.0.0.1:{port}", streams, messages))
    while len(wake) < streams and not reading.done():
        await asyncio.sleep(BARE_INTERVAL_S)
    began = time.process_time()
    for _ in range(messages):
        for each in wake:
            each.release()
        await asyncio.sleep(BARE_INTERVAL_S)
    spent = time.process_time() - began
    await reading
    await server.stop(0)
    return 1e6 * spent / (streams * messages)


def table(points: list[Point], ready_s: float, bare_us: float) -> list[str]:
    """Return the lines that are printed, and written into the docs."""
    heads = (
        "streams | tokens/s | in one process | ms a token | its roof | "
        "us of CPU a token: router | scheduler | worker | client | control plane of a step"
    )
    lines = [f"| {heads} |", "|---" * 10 + "|"]
    lines += [
        f"| {point.streams} | {point.tokens_per_s:,.0f} | {point.engine_tokens_per_s:,.0f} | "
        f"{point.tpot_ms:.1f} | {point.roof_tpot_ms:.1f} | {point.router_us:.0f} | "
        f"{point.scheduler_us:.0f} | {point.worker_us:,.0f} | {point.client_us:.0f} | "
        f"{point.control_share:.1%} |"
        for point in points
    ]
    return [
        *lines,
        "",
        f"A server of grpc.aio that only writes messages takes {bare_us:.0f} us of CPU for each.",
        f"The cluster was ready after {ready_s:.1f} s.",
    ]


def draw(points: list[Point], path: Path) -> None:
    """Draw tokens/s, time per token and the router's CPU time over the number of streams."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3), layout="constrained")
    FigureCanvasSVG(figure)
    streams = [point.streams for point in points]
    panels = {
        "tokens/s": {
            "cluster": [point.tokens_per_s for point in points],
            "one process": [point.engine_tokens_per_s for point in points],
            "roof": [1e3 * point.streams / point.roof_tpot_ms for point in points],
        },
        "ms a token": {
            "cluster": [point.tpot_ms for point in points],
            "roof": [point.roof_tpot_ms for point in points],
        },
        "us of CPU a token": {
            "router": [point.router_us for point in points],
            "scheduler": [point.scheduler_us for point in points],
        },
    }
    for axes, (title, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel("streams", fontsize=8)
        for name, values in lines.items():
            axes.loglog(streams, values, "--" if name == "roof" else "-o", label=name)
        axes.set_xticks(streams, map(str, streams))
        axes.minorticks_off()
        axes.legend(fontsize=8)
    # The same results give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "quire"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="write docs/benchmarks.md")
    arguments = parser.parse_args()
    log.configure("bench", "warning")
    model = write_model(SHAPE, BUILD / "models" / SHAPE.name)
    ready_s, measured = asyncio.run(measure_cluster(model))
    machine = probe(len(os.sched_getaffinity(0)), "bfloat16")
    speeds = measure_engine(model)
    bare_us = asyncio.run(measure_bare())
    rates = machine.bytes_per_s, machine.flop_per_s
    points = [
        Point(
            streams,
            roof_tpot_ms=1e3 * roof_tpot_s(streams, LENGTHS[streams], *rates),
            engine_tokens_per_s=speeds[streams],
            **figures,
        )
        for streams, figures in measured.items()
    ]
    lines = table(points, ready_s, bare_us)
    print("\n".join(lines))
    print(json.dumps({"points": [*map(asdict, points)], "ready_s": ready_s, "bare_us": bare_us}))
    if arguments.report:
        title = f"**Growth**, {SHAPE.name} Llama in bfloat16; {processor()}:"
        picture = "![Growth of the cluster with its streams](images/growth.svg)"
        replace_section(
            ROOT / "docs" / "benchmarks.md", BEGIN, END, "\n".join([title, "", *lines, "", picture])
        )
        draw(points, ROOT / "docs" / "images" / "growth.svg")


if __name__ == "__main__":
    main()
