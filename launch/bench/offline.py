"""`quire bench throughput` and `latency`: the engine without a server, by `quire.LLM`."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from launch.bench.datasets import Sample, load_samples
from launch.bench.offline_options import EngineUnderTest, LatencyOptions, ThroughputOptions
from launch.bench.places import check_file, unwritable
from launch.bench.tokens import Tokens, find_tokenizer
from launch.cluster.config import embedded_model
from launch.llm import LLM
from launch.model_names import check_given
from quire.contract.errors import ConfigError
from quire.contract.sampling_params import BeamSearchParams, SamplingParams
from quire.sdk.client import Client
from quire.sdk.progress import progress_bar

PERCENTILES = (10, 25, 50, 75, 90, 99)


def bench_throughput(options: ThroughputOptions) -> None:
    """Start a cluster, have it answer all prompts, and report how fast it was.

    Raises:
        QuireError: the cluster cannot start, or a prompt is refused.
        ConfigError: a file cannot be read or written.
    """
    _check_output(options.output_json)
    tokens = _tokens_of(options.tokenizer or options.model)
    rng = np.random.default_rng(options.seed)
    samples = load_samples(options, tokens, rng, as_text=False)
    params = [_params(options, each.num_output_tokens) for each in samples]
    with _start(options, samples) as llm:
        began = time.perf_counter()
        outputs = llm.generate(
            [each.prompt for each in samples], params, use_tqdm=not options.disable_tqdm
        )
        elapsed = time.perf_counter() - began
    num_prompt_tokens = sum(len(each.prompt_token_ids) for each in outputs)
    num_output_tokens = sum(len(output.token_ids) for each in outputs for output in each.outputs)
    num_tokens = num_prompt_tokens + num_output_tokens
    result = {
        "elapsed_time": elapsed,
        "num_requests": len(samples),
        "total_num_tokens": num_tokens,
        "requests_per_second": len(samples) / elapsed,
        "tokens_per_second": num_tokens / elapsed,
        "total_prompt_tokens": num_prompt_tokens,
        "total_output_tokens": num_output_tokens,
        "output_tokens_per_second": num_output_tokens / elapsed,
    }
    typer.echo(
        f"Throughput: {result['requests_per_second']:.2f} requests/s, "
        f"{result['tokens_per_second']:.2f} total tokens/s, "
        f"{result['output_tokens_per_second']:.2f} output tokens/s"
    )
    typer.echo(f"Total num prompt tokens:  {num_prompt_tokens}")
    typer.echo(f"Total num output tokens:  {num_output_tokens}")
    _write(options.output_json, result)


def bench_latency(options: LatencyOptions) -> None:
    """Start a cluster, have it answer a batch again and again, and report how long it took.

    Raises:
        QuireError: the cluster cannot start, or a prompt is refused.
        ConfigError: the result cannot be written.
    """
    _check_output(options.output_json)
    tokens = _tokens_of(options.model)
    rng = np.random.default_rng(options.seed)
    prompts = [tokens.draw(rng, options.input_len).tolist() for _ in range(options.batch_size)]
    samples = [Sample(each, options.input_len, options.output_len) for each in prompts]
    with _start(options, samples) as llm:
        _batches(llm, options, prompts, options.num_iters_warmup, "Warm-up batches")
        latencies = np.array(_batches(llm, options, prompts, options.num_iters, "Batches"))
    percentiles = dict(
        zip(map(str, PERCENTILES), np.percentile(latencies, PERCENTILES).tolist(), strict=True)
    )
    typer.echo(f"Avg latency: {latencies.mean():.4f} seconds")
    typer.echo(f"Std latency: {latencies.std():.4f} seconds")
    for name, value in percentiles.items():
        typer.echo(f"{name}% percentile latency: {value:.4f} seconds")
    result = {
        "avg_latency": float(latencies.mean()),
        "std_latency": float(latencies.std()),
        "latencies": latencies.tolist(),
        "percentiles": percentiles,
    }
    _write(options.output_json, result)


def _batches(
    llm: LLM, options: LatencyOptions, prompts: Sequence[list[int]], count: int, title: str
) -> list[float]:
    """Answer a batch so many times; return the seconds of each."""
    params = _params(options, options.output_len)
    beams = BeamSearchParams(options.n, options.output_len, ignore_eos=True)
    num_tokens = len(prompts) * options.n * options.output_len
    seconds = []
    with progress_bar(count, count > 0 and not options.disable_tqdm, title) as advance:
        for _ in range(count):
            began = time.perf_counter()
            if options.use_beam_search:
                llm.beam_search(prompts, beams, use_tqdm=False)
            else:
                llm.generate(prompts, params, use_tqdm=False)
            seconds.append(time.perf_counter() - began)
            advance(num_tokens)
    return seconds


def _params(options: EngineUnderTest, max_tokens: int) -> SamplingParams:
    return SamplingParams(n=options.n, temperature=1.0, ignore_eos=True, max_tokens=max_tokens)


def _check_output(path: Path | None) -> None:
    if path is not None:
        check_file("output_json", path)


def _tokens_of(model: str | None) -> Tokens:
    name = embedded_model().name if model is None else model
    check_given(name)
    tokens = find_tokenizer(name)
    if tokens is None:
        raise ConfigError(f"model: must be on this machine, got {name}")
    return tokens


def _start(options: EngineUnderTest, samples: Sequence[Sample]) -> LLM:
    """Return a cluster that can hold the answers whole.

    Raises:
        ConfigError: it would cut one short, or cannot start.
    """
    llm = LLM(options.model, **options.keywords)
    try:
        with Client(llm.target) as client:
            limit = client.list_models()[0].max_model_len
        longest = max(each.num_prompt_tokens + each.num_output_tokens for each in samples)
        if longest > limit:
            raise ConfigError(
                f"input_len, output_len: must be at most {limit:,} tokens together, which is "
                f"max_model_len, got {longest:,}"
            )
    except BaseException:
        llm.close()
        raise
    return llm


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(result, indent=4) + "\n", encoding="utf-8")
    except OSError as error:
        raise unwritable("output_json", path, error) from None
