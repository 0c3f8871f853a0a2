"""`make bench-smoke`: the whole cluster at 64 decoding sequences of the embedded model.

Prints tokens/s at the client, where a step's time goes, and the bytes of a step's message, over a
window in which all sequences are decoding; medians over several windows, because machines are
noisy.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import CellState, Delta, Finished
from quire.observe import log

MESSAGE_BYTES_TARGET = 4096
OVERHEAD_US_TARGET = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """Means over the steps between two reports of a cell.

    Attributes:
        tokens_per_s: sampled tokens over the time the client saw pass.
        schedule_us, wire_us, model_us, sample_us: of one step.
        step_bytes: of one step's message to a worker.
        num_running: sequences running at the end.
    """

    tokens_per_s: float
    schedule_us: float
    wire_us: float
    model_us: float
    sample_us: float
    step_bytes: float
    num_running: int


def window(old: CellState, new: CellState, seconds: float) -> Window:
    """Return the means between two reports."""
    steps = new.steps_total - old.steps_total

    def mean(name: str) -> float:
        return float(getattr(new, name) - getattr(old, name)) / steps

    return Window(
        tokens_per_s=(new.tokens_total - old.tokens_total) / seconds,
        schedule_us=mean("schedule_us_total"),
        wire_us=mean("wire_us_total"),
        model_us=mean("model_us_total"),
        sample_us=mean("sample_us_total"),
        step_bytes=mean("step_bytes_total"),
        num_running=new.num_running,
    )


async def decode(client: AsyncClient, index: int, max_tokens: int) -> int:
    """Run one stream to its end; return the tokens received."""
    params = SamplingParams(temperature=0.8, seed=index, max_tokens=max_tokens, ignore_eos=True)
    received = 0
    async for event in client.stream([10 + index % 50] * 16, params):
        match event:
            case Delta():
                received += len(event.token_ids)
            case Finished():
                assert event.num_output_tokens == received == max_tokens
    return received


async def watch(client: AsyncClient, sequences: int, windows: list[Window]) -> None:
    """Collect windows of at least a second in which every sequence was decoding."""
    began, first = 0.0, CellState()
    async for cells in client.watch_cluster():
        state, now = cells[0].state, time.perf_counter()
        if state.num_running != sequences or state.num_waiting:
            began = 0.0
        elif not began:
            began, first = now, state
        elif now - began >= 1.0:
            windows.append(window(first, state, now - began))
            began, first = now, state


async def bench(model: Path, sequences: int, max_tokens: int) -> None:
    """Start a cluster, load it, print the table."""
    cluster = Cluster(ClusterConfig(model=model, port=None, grpc_port=0))
    await cluster.start()
    # Clients have machines of their own; here they should not take the cluster's cores.
    os.nice(10)
    windows: list[Window] = []
    try:
        async with AsyncClient(cluster.router.address) as client:
            await client.generate([10] * 16, SamplingParams(max_tokens=8, ignore_eos=True))
            watcher = asyncio.create_task(watch(client, sequences, windows))
            began = time.perf_counter()
            streams = (decode(client, index, max_tokens) for index in range(sequences))
            tokens = sum(await asyncio.gather(*streams))
            seconds = time.perf_counter() - began
            watcher.cancel()
    finally:
        await cluster.stop()
    if not windows:
        raise SystemExit("error: the run was too short to see one whole window; raise --max-tokens")
    report(windows, sequences, tokens / seconds)


def report(windows: list[Window], sequences: int, client_tokens_per_s: float) -> None:
    """Print medians over the windows, beside the targets."""
    names = [name for name in asdict(windows[0]) if name != "num_running"]
    median = {name: statistics.median(getattr(w, name) for w in windows) for name in names}
    overhead = median["schedule_us"] + median["wire_us"]
    total = overhead + median["model_us"] + median["sample_us"]
    print(f"{sequences} decoding sequences, medians of {len(windows)} windows of one second")
    print(f"  tokens/s           {median['tokens_per_s']:10,.0f}  while all decode")
    print(f"  tokens/s           {client_tokens_per_s:10,.0f}  at the client, start to end")
    for name in ("schedule_us", "wire_us", "model_us", "sample_us"):
        print(f"  {name:<18} {median[name]:10,.0f}  {median[name] / total:6.1%} of a step")
    verdict = "met" if overhead <= OVERHEAD_US_TARGET else "MISSED"
    print(f"  schedule + wire us {overhead:10,.0f}  target <= {OVERHEAD_US_TARGET}: {verdict}")
    size = median["step_bytes"]
    verdict = "met" if size <= MESSAGE_BYTES_TARGET else "MISSED"
    print(f"  bytes per step     {size:10,.0f}  target <= {MESSAGE_BYTES_TARGET}: {verdict}")
    print(
        json.dumps({"sequences": sequences, "client_tokens_per_s": client_tokens_per_s, **median})
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=embedded_model())
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=400)
    arguments = parser.parse_args()
    log.configure("bench", "warning")
    asyncio.run(bench(arguments.model, arguments.sequences, arguments.max_tokens))
