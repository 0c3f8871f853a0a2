"""`quire bench serve`, from its options to its result."""

import asyncio
import gc
import math
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import numpy as np
import numpy.typing as npt
import typer

from launch.bench.arrivals import arrival_times, ramp_up_times
from launch.bench.clients.base import BenchClient
from launch.bench.connect import open_client, server_of, takes_token_ids
from launch.bench.dataset_options import DatasetName
from launch.bench.datasets import Sample, load_samples
from launch.bench.load import Run, run_load
from launch.bench.metrics import Metrics, measure
from launch.bench.places import unwritable
from launch.bench.report import check_place, remarks_on, result_of, result_path, save, table_of
from launch.bench.serve_options import ServeOptions
from launch.bench.tokens import Tokens, find_tokenizer
from launch.cluster.config import embedded_model
from quire.contract.errors import ConfigError, UnavailableError
from quire.sdk.progress import progress_bar

READY_CHECK_EVERY_S = 1.0


def bench_serve(options: ServeOptions, api_key: str | None) -> bool:
    """Measure a server, and print, save and draw what came of it.

    Args:
        options: of the run.
        api_key: to call with; None for none, and for Quire's API that of the environment.

    Returns:
        Whether any request succeeded.

    Raises:
        QuireError: a file or the server's list of models cannot be read, or the server is not
            ready in time.
    """
    check_place(options)
    _allow_many_connections()
    return asyncio.run(_bench(options, api_key))


async def _bench(options: ServeOptions, api_key: str | None) -> bool:
    prompts_rng, times_rng = np.random.default_rng(options.seed).spawn(2)
    client = open_client(options, api_key)
    try:
        model = options.model or await client.first_model()
        client.model = options.served_model_name or model
        wanted = options.tokenizer or model
        tokens = find_tokenizer(wanted)
        if tokens is None and options.tokenizer is not None:
            raise ConfigError(f"tokenizer: must be of a model on this machine, got {wanted}")
        samples = load_samples(
            options,
            tokens or _stand_in(wanted, options),
            prompts_rng,
            as_text=tokens is None or not takes_token_ids(options),
        )
        _print_setting(options, client.model, len(samples))
        await _warm_up(options, client, samples[0])
        # What is there by now stays: no pause to look for what of it could go.
        gc.collect()
        gc.freeze()
        with progress_bar(len(samples), not options.disable_tqdm) as advance:
            run = await run_load(
                client,
                samples,
                _times(options, len(samples), times_rng),
                options.max_concurrency,
                advance,
            )
    finally:
        await client.close()
    metrics = measure(run.outcomes, run.duration, tokens.count if tokens else None, options.good)
    _report(options, model, wanted if tokens else None, samples, run, metrics)
    return metrics.completed > 0


def _stand_in(model: str, options: ServeOptions) -> Tokens | None:
    """Return the tokens of which to make prompts of a model that is not on this machine."""
    if options.dataset_name == DatasetName.CUSTOM:
        return None  # its texts are what they are
    typer.echo(
        f"tokenizer: {model} is not on this machine, prompts have about as many tokens as asked "
        "for; --tokenizer makes it exact",
        err=True,
    )
    return find_tokenizer(embedded_model().name)


def _times(options: ServeOptions, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    if options.ramp_up_strategy is None:
        return arrival_times(count, options.request_rate, options.burstiness, rng)
    assert options.ramp_up_start_rps is not None
    assert options.ramp_up_end_rps is not None
    return ramp_up_times(
        count,
        options.ramp_up_strategy,
        options.ramp_up_start_rps,
        options.ramp_up_end_rps,
        options.burstiness,
        rng,
    )


async def _warm_up(options: ServeOptions, client: BenchClient, sample: Sample) -> None:
    """Wait until the server answers, and send what is not measured.

    Raises:
        UnavailableError: it does not answer in time.
    """
    deadline = time.monotonic() + options.ready_check_timeout_sec
    while options.ready_check_timeout_sec:
        [outcome] = (await _unmeasured(client, sample, 1, None)).outcomes
        if not outcome.error:
            break
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"the server did not answer within {options.ready_check_timeout_sec:g} s: "
                f"{outcome.error}"
            )
        await asyncio.sleep(READY_CHECK_EVERY_S)
    if options.num_warmups:
        run = await _unmeasured(client, sample, options.num_warmups, options.max_concurrency)
        errors = [each.error for each in run.outcomes if each.error]
        if errors:
            typer.echo(
                f"warning: {len(errors)} of {options.num_warmups} requests to warm up failed: "
                f"{errors[0]}",
                err=True,
            )


async def _unmeasured(
    client: BenchClient, sample: Sample, count: int, max_concurrency: int | None
) -> Run:
    return await run_load(
        client, [sample] * count, np.zeros(count), max_concurrency, lambda _: None
    )


def _print_setting(options: ServeOptions, model: str, count: int) -> None:
    rate = "all at once"
    if not math.isinf(options.request_rate):
        rate = f"{options.request_rate:g} requests a second, burstiness {options.burstiness:g}"
    if options.ramp_up_strategy is not None:
        rate = (
            f"{options.ramp_up_start_rps:g} to {options.ramp_up_end_rps:g} requests a second "
            f"({options.ramp_up_strategy}), burstiness {options.burstiness:g}"
        )
    limit = f", at most {options.max_concurrency} under way" if options.max_concurrency else ""
    typer.echo(
        f"{count:,} requests of {options.dataset_name} for {model} at {server_of(options)} "
        f"({options.backend}): {rate}{limit}"
    )


def _report(
    options: ServeOptions,
    model: str,
    tokenizer: str | None,
    samples: Sequence[Sample],
    run: Run,
    metrics: Metrics,
) -> None:
    now = datetime.now()
    result = result_of(options, model, tokenizer, run, metrics, now)
    for line in table_of(options, result):
        typer.echo(line)
    for line in remarks_on(options, samples, run, metrics):
        typer.echo(line, err=True)
    if options.save_result or options.append_result:
        path = result_path(options, model, now)
        try:
            save(options, result, path)
        except OSError as error:
            raise unwritable("result_filename", path, error) from None
        typer.echo(f"saved to {path}")
    if options.plot is not None:
        from launch.bench.plot import plot

        try:
            plot(metrics, options.percentiles, options.plot)
        except OSError as error:
            raise unwritable("plot", options.plot, error) from None


def _allow_many_connections() -> None:
    """Let this process have as many open files as it may: each request under way takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
