"""What a run of `quire bench serve` writes: a table, and a result with the keys of `vllm bench`."""

import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from launch.bench.datasets import Sample
from launch.bench.load import Run
from launch.bench.metrics import Metrics
from launch.bench.places import check_directory, check_file
from launch.bench.serve_options import ServeOptions
from quire.contract.errors import ConfigError

WIDTH = 50
# More than this, and times are those at which the client came to read, not those of the answer.
MOST_CLIENT_CPU = 0.8
MOST_ERRORS_SHOWN = 5
_HEADINGS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (after the first)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def result_of(
    options: ServeOptions,
    model: str,
    tokenizer: str | None,
    run: Run,
    metrics: Metrics,
    now: datetime,
) -> dict[str, Any]:
    """Return the result, with the keys and units of `vllm bench serve`.

    Args:
        options: of the run.
        model: that was asked for.
        tokenizer: name of the one that made prompts; None without one.
        run: what came of all requests.
        metrics: what that comes to.
        now: when it ended.
    """
    summary = {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": model,
        "tokenizer_id": tokenizer,
        "num_prompts": options.num_prompts,
        **options.notes,
        "request_rate": "inf" if math.isinf(options.request_rate) else options.request_rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
    }
    if options.ramp_up_strategy is not None:
        summary |= {
            "ramp_up_strategy": options.ramp_up_strategy,
            "ramp_up_start_rps": options.ramp_up_start_rps,
            "ramp_up_end_rps": options.ramp_up_end_rps,
        }
    seconds = metrics.duration
    num_tokens = metrics.total_input_tokens + metrics.total_output_tokens
    summary |= {
        "duration": seconds,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.completed / seconds,
        "request_goodput": metrics.good / seconds if options.good else None,
        "output_throughput": metrics.total_output_tokens / seconds,
        "total_token_throughput": num_tokens / seconds,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "client_cpu_utilization": run.client_cpu / seconds,
    }
    for name in options.metrics:
        summary |= _statistics(name, metrics, options.percentiles)
    return summary | (_details(run, metrics) if options.save_detailed else {})


def percentile_word(percentile: float) -> str:
    """Return how a percentile is written in keys: p99, p99.9."""
    whole = int(percentile)
    return f"p{whole if percentile == whole else percentile}"


def _statistics(name: str, metrics: Metrics, percentiles: tuple[float, ...]) -> dict[str, float]:
    """Return what is reported of a latency, in milliseconds; zeros where nothing was measured."""
    values = metrics.latencies[name] * 1e3
    if not len(values):
        values = np.zeros(1)
    found = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    for each in percentiles:
        found[f"{percentile_word(each)}_{name}_ms"] = float(np.percentile(values, each))
    return found


def _details(run: Run, metrics: Metrics) -> dict[str, Any]:
    """Return what is known of each request, times in seconds."""
    outcomes = run.outcomes
    return {
        "input_lens": [each.num_prompt_tokens for each in outcomes],
        "output_lens": metrics.output_lens,
        "ttfts": [0.0 if each.error else each.ttft for each in outcomes],
        "itls": [each.tolist() for each in metrics.itls],
        "latencies": [0.0 if each.error else each.latency for each in outcomes],
        "start_times": [each.started for each in outcomes],
        "queue_times": [each.started - each.due for each in outcomes],
        "generated_texts": [each.text for each in outcomes],
        "errors": [each.error for each in outcomes],
    }


def table_of(options: ServeOptions, result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table that is printed."""
    yield " Serving Benchmark Result ".center(WIDTH, "=")
    yield _line("Successful requests:", result["completed"])
    yield _line("Failed requests:", result["failed"])
    if options.max_concurrency is not None:
        yield _line("Maximum request concurrency:", options.max_concurrency)
    if not math.isinf(options.request_rate):
        yield _line("Request rate asked for (req/s):", options.request_rate)
    yield _line("Benchmark duration (s):", result["duration"])
    yield _line("Total input tokens:", result["total_input_tokens"])
    yield _line("Total generated tokens:", result["total_output_tokens"])
    yield _line("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        yield _line("Request goodput (req/s):", result["request_goodput"])
    yield _line("Output token throughput (tok/s):", result["output_throughput"])
    yield _line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    yield _line("Peak concurrent requests:", result["max_concurrent_requests"])
    yield _line("Total token throughput (tok/s):", result["total_token_throughput"])
    yield _line("Client CPU (% of a core):", 100 * result["client_cpu_utilization"])
    for name in options.metrics:
        short, heading = _HEADINGS[name]
        yield heading.center(WIDTH, "-")
        words = {"mean": "Mean", "median": "Median"}
        words |= {word: word.upper() for word in map(percentile_word, options.percentiles)}
        for key, word in words.items():
            yield _line(f"{word} {short} (ms):", result[f"{key}_{name}_ms"])
    yield "=" * WIDTH


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value if isinstance(value, int) else f'{value:.2f}'}"


def remarks_on(
    options: ServeOptions, samples: Sequence[Sample], run: Run, metrics: Metrics
) -> Iterator[str]:
    """Yield what stands in the way of taking the figures as they are."""
    share = run.client_cpu / run.duration
    if share > MOST_CLIENT_CPU:
        yield (
            f"warning: this client took {share:.0%} of a core, so that latencies may be its own: "
            "send fewer requests, or start several clients"
        )
    num_short = sum(
        not outcome.error and count < sample.num_output_tokens
        for sample, outcome, count in zip(samples, run.outcomes, metrics.output_lens, strict=True)
    )
    if options.ignores_eos and num_short:
        yield f"warning: {num_short} answers have fewer tokens than were asked for"
    errors = [each.error for each in run.outcomes if each.error]
    if errors:
        yield f"{len(errors)} requests failed; the first errors:"
        yield from (f"  {error}" for error in errors[:MOST_ERRORS_SHOWN])


def result_path(options: ServeOptions, model: str, now: datetime) -> Path:
    """Return where the result is written."""
    if options.result_filename is not None:
        name = options.result_filename
    else:
        rate = f"{options.request_rate:g}qps"
        if options.ramp_up_strategy is not None:
            rate = (
                f"ramp-up-{options.ramp_up_strategy}-{options.ramp_up_start_rps:g}qps-"
                f"{options.ramp_up_end_rps:g}qps"
            )
        limit = f"-concurrency{options.max_concurrency}" if options.max_concurrency else ""
        label = options.label or options.backend
        name = f"{label}-{rate}{limit}-{Path(model).name}-{now:%Y%m%d-%H%M%S}.json"
    return (options.result_dir or Path()) / name


def check_place(options: ServeOptions) -> None:
    """Check that results and pictures can be written where they are to go.

    Raises:
        ConfigError: they cannot.
    """
    if options.save_result or options.append_result:
        directory = options.result_dir or Path()
        check_directory("result_dir", directory)
        if options.result_filename is None:  # its name is made of the model's and of the time
            probe = directory / ".probe"
            try:
                check_file("result_dir", probe)
            except ConfigError:
                raise ConfigError(
                    f"result_dir: must be a directory that can be written, got {directory}"
                ) from None
        else:
            path = directory / options.result_filename
            check_directory("result_filename", path.parent)
            check_file("result_filename", path)
    if options.plot is not None:  # whose directory is not made
        check_file("plot", options.plot)


def save(options: ServeOptions, result: dict[str, Any], path: Path) -> None:
    """Write a result, as one line.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if options.append_result else "w", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
