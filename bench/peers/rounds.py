"""Engines in turn, round after round, with the machine measured beside each run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.peers.adapters.protocol import Options, UnsupportedError
from bench.peers.engine_process import EngineFailedError, EngineProcess
from bench.peers.environments import BUILD, missing
from bench.peers.probes import Probe, probe, processor
from bench.peers.record import Key, Results, Row
from bench.peers.shapes import BYTES, SHAPES, write_model
from bench.peers.statistics import figures, roof_seconds
from bench.peers.workloads import PACES, WORKLOADS, warm_up

_MAX_NUM_SEQS = 64
_MAX_MODEL_LEN = 8192
_KV_GIB = {"bfloat16": 2, "int8": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: every workload on every engine, for each shape and dtype.

    Attributes:
        engines, shapes, dtypes, workloads: names.
        rounds: runs of each; the report has medians.
        num_threads: that compute.
        quick: fewer and shorter requests, to see that all of it works.
    """

    engines: list[str]
    shapes: list[str]
    dtypes: list[str]
    workloads: list[str]
    rounds: int
    num_threads: int
    quick: bool = False


@dataclass(slots=True)
class _Turns:
    """What one shape and dtype needs in each engine's turn."""

    plan: Plan
    results: Results
    options: Options
    shape: str
    say: Callable[[str], None]
    skipped: set[str] = field(default_factory=set)

    def turn(self, engine: str, number: int) -> None:
        """Start an engine, run the workloads once each, stop it."""
        began = time.perf_counter()
        with EngineProcess(engine) as process:
            process.convert(self.options)
            converted = time.perf_counter()
            self.results.versions[engine] = process.start(self.options)
            started = time.perf_counter()
            process.run(warm_up())
            self.say(
                f"{self.shape} {self.options.dtype} {engine}: round {number + 1}, "
                f"{converted - began:.0f} s to convert, {started - converted:.1f} s to start"
            )
            for workload in self.plan.workloads:
                self._run(process, Key(engine, self.shape, self.options.dtype, workload), number)

    def _run(self, process: EngineProcess, key: Key, number: int) -> None:
        pace, workload = PACES[key.shape], WORKLOADS[key.workload]
        # No prompt comes twice: a prefix cache would know it.
        requests = workload.requests(number + 1, pace, self.plan.quick)
        before = probe(self.plan.num_threads, key.dtype)
        try:
            result = figures(requests, process.run(requests), pace)
        except (EngineFailedError, ValueError) as error:
            self.results.missing[key] = str(error)
            self.say(f"{key}: {error}")
            return
        after = probe(self.plan.num_threads, key.dtype)
        mean = Probe(
            (before.bytes_per_s + after.bytes_per_s) / 2,
            (before.flop_per_s + after.flop_per_s) / 2,
            max(before.load, after.load),
        )
        roof = 0.0
        if not workload.arrives:
            kv_bytes = 4.0 if key.dtype == "float32" else 2.0
            roof = roof_seconds(
                requests,
                SHAPES[key.shape],
                BYTES[key.dtype],
                kv_bytes,
                mean.bytes_per_s,
                mean.flop_per_s,
            )
        row = Row(result, mean, roof, process.memory_bytes())
        self.results.rows.setdefault(key, []).append(row)
        self.say(
            f"{key}: {result.tokens_per_s:.0f} tokens/s, TTFT {1e3 * result.ttft_p50:.0f} ms, "
            f"TPOT {1e3 * result.tpot_p50:.1f} ms; {mean.bytes_per_s / 1e9:.0f} GB/s, "
            f"{mean.flop_per_s / 1e9:.0f} GFLOP/s, load {mean.load:.1f}"
        )


def run_rounds(plan: Plan, say: Callable[[str], None]) -> Results:
    """Measure; what cannot be is named with its reason.

    Args:
        plan: what is measured.
        say: called with a line about each run.
    """
    results = Results(processor(), plan.num_threads, plan.quick)
    for shape in plan.shapes:
        model = write_model(SHAPES[shape], BUILD / "models" / shape)
        for dtype in plan.dtypes:
            options = Options(
                str(model),
                dtype,
                plan.num_threads,
                _MAX_NUM_SEQS,
                _MAX_MODEL_LEN,
                _KV_GIB[dtype],
            )
            turns = _Turns(plan, results, options, shape, say)
            for number in range(plan.rounds):
                # Each engine goes first once.
                shift = number % len(plan.engines)
                for engine in plan.engines[shift:] + plan.engines[:shift]:
                    _take_turn(turns, engine, number)
    return results


def _take_turn(turns: _Turns, engine: str, number: int) -> None:
    """Give an engine its turn, unless it failed in an earlier one."""
    if engine in turns.skipped:
        return
    try:
        if reason := missing(engine):
            raise UnsupportedError(reason)
        turns.turn(engine, number)
    except (UnsupportedError, EngineFailedError) as error:
        turns.skipped.add(engine)
        for workload in turns.plan.workloads:
            turns.results.missing[Key(engine, turns.shape, turns.options.dtype, workload)] = str(
                error
            )
        turns.say(f"{turns.shape} {turns.options.dtype} {engine}: {error}")
