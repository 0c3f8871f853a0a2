"""The worker service over a real server: life cycle, epochs, failures."""

import asyncio
from pathlib import Path

import grpc
import pytest

from quire import __version__
from quire.contract.epochs import clock_epoch
from quire.v1 import worker_pb2
from tests.factories import VOCAB_SIZE, llama_config, random_model
from tests.models.driver import Driver, load_runner
from tests.rpc.worker_client import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    PROMPT,
    Steps,
    WorkerStub,
    error_of,
    init_cache,
    load,
    prefill,
    sequence,
)


async def test_life_cycle(worker: WorkerStub, llama: Path) -> None:
    empty = await worker.Describe(worker_pb2.DescribeRequest())
    assert (empty.version, empty.device, empty.epoch) == (__version__, "cpu", 0)
    assert empty.isa
    assert not empty.HasField("model")
    assert empty.num_blocks == 0

    options = worker_pb2.LoadOptions(max_model_len=128)
    loaded = await load(worker, llama, options=options)
    assert loaded.model.name == "tiny"
    assert loaded.model.architecture == "LlamaForCausalLM"
    assert loaded.model.max_model_len == 128
    assert loaded.model.vocab_size == VOCAB_SIZE
    assert await load(worker, llama, options=options) == loaded

    profile = await worker.ProfileCache(
        worker_pb2.ProfileCacheRequest(
            epoch=1,
            options=worker_pb2.CacheOptions(
                block_size=BLOCK_SIZE,
                max_num_batched_tokens=64,
                max_num_seqs=8,
                kv_cache_gib=2**-12,
            ),
        )
    )
    # Keys and values of 3 layers, 2 heads of 16 features, 4 bytes each.
    assert profile.block_bytes == 2 * 3 * 2 * 16 * 4 * BLOCK_SIZE
    assert profile.num_blocks == 2**18 // profile.block_bytes

    await init_cache(worker)
    full = await worker.Describe(worker_pb2.DescribeRequest())
    assert (full.epoch, full.num_blocks, full.model) == (1, NUM_BLOCKS, loaded.model)

    steps = Steps(worker, epoch=1)
    result = await steps.run(**prefill(sequence(7, PROMPT, [4, 9, 2])))
    tokens = list(result.token_ids)
    assert list(result.sequence_ids) == [7]
    assert result.epoch == 1
    assert result.worker_us >= result.model_us > 0
    for _ in range(7):
        tokens.extend((await steps.decode([7])).token_ids)
    assert tokens == Driver(load_runner(llama)).generate([PROMPT], 8)[0]
    await steps.call.done_writing()
    with pytest.raises(EOFError):
        await steps.receive()


async def test_profile_is_bounded_by_what_sequences_can_use(ready_worker: WorkerStub) -> None:
    profile = await ready_worker.ProfileCache(
        worker_pb2.ProfileCacheRequest(
            epoch=1,
            options=worker_pb2.CacheOptions(
                block_size=16, max_num_batched_tokens=32, max_num_seqs=3
            ),
        )
    )
    assert profile.num_blocks == 3 * 256 // 16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 0}, "block_size: must be in [1, 256], got 0"),
        ({"block_size": 24}, "block_size: must be a power of two in [8, 256], got 24"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens: must be in [1, 1048576], got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs: must be in [1, 65536], got 0"),
        ({"kv_cache_gib": 100 / 2**30}, "kv_cache_gib: must hold a block"),
        ({"kv_cache_gib": 2**30}, "kv_cache_gib: must be at most the free memory"),
        (
            {"gpu_memory_utilization": 1e-9},
            "gpu_memory_utilization: must leave memory for a block of the cache beside 0.0 GiB of "
            "weights, got 1e-09",
        ),
    ],
)
async def test_bad_profile(
    ready_worker: WorkerStub, fields: dict[str, float], message: str
) -> None:
    good = {"block_size": 16, "max_num_batched_tokens": 32, "max_num_seqs": 3}
    options = worker_pb2.CacheOptions(**{**good, **fields})
    request = worker_pb2.ProfileCacheRequest(epoch=1, options=options)
    code, details = await error_of(ready_worker.ProfileCache(request))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert message in details


async def test_order_of_calls_is_checked(worker: WorkerStub, llama: Path) -> None:
    code, details = await error_of(init_cache(worker))
    assert (code, details) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "model: must be loaded first, by LoadModel",
    )
    await load(worker, llama)
    steps = Steps(worker, epoch=1)
    await steps.send(**prefill(sequence(1, PROMPT, [0, 1])))
    code, details = await error_of(steps.receive())
    assert details == "cache: must be allocated first, by InitCache"


async def test_unusable_model_is_one_line_and_leaves_the_worker_alive(
    worker: WorkerStub, llama: Path, tmp_path: Path
) -> None:
    code, details = await error_of(load(worker, tmp_path))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert (
        details
        == f"{tmp_path}: no config.json and no .gguf file; is it a Hugging Face model directory?"
    )
    await load(worker, llama)


async def test_stale_epoch_is_refused_everywhere(ready_worker: WorkerStub, llama: Path) -> None:
    await ready_worker.Reset(worker_pb2.ResetRequest(epoch=5))
    steps = Steps(ready_worker, epoch=4)
    await steps.send()
    for awaitable in (
        load(ready_worker, llama, epoch=4),
        ready_worker.ProfileCache(worker_pb2.ProfileCacheRequest(epoch=4)),
        init_cache(ready_worker, epoch=4),
        ready_worker.Mirror(worker_pb2.MirrorRequest(epoch=4)),
        ready_worker.Reset(worker_pb2.ResetRequest(epoch=4)),
        steps.receive(),
    ):
        code, details = await error_of(awaitable)
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert details == "epoch 4 is over; this worker obeys epoch 5"
    for absurd in (0, clock_epoch() + 31 * 86_400_000, 2**64 - 1):
        for call in (
            ready_worker.Reset(worker_pb2.ResetRequest(epoch=absurd)),
            ready_worker.Mirror(worker_pb2.MirrorRequest(epoch=absurd)),
        ):
            code, details = await error_of(call)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert details.startswith("epoch: must be at ") and details.endswith(f"got {absurd}")
    assert (await ready_worker.Describe(worker_pb2.DescribeRequest())).epoch == 5


async def test_newer_epoch_ends_an_idle_stream(ready_worker: WorkerStub) -> None:
    old = Steps(ready_worker, epoch=1)
    await old.run(**prefill(sequence(1, PROMPT, [0, 1])))
    await ready_worker.Reset(worker_pb2.ResetRequest(epoch=2))
    code, details = await error_of(old.receive())
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert details == "the stream of epoch 1 was replaced by a newer one"
    assert not (await ready_worker.Mirror(worker_pb2.MirrorRequest(epoch=2))).sequences


async def test_newer_stream_ends_the_older_and_starts_empty(ready_worker: WorkerStub) -> None:
    old = Steps(ready_worker, epoch=1)
    await old.run(**prefill(sequence(1, PROMPT, [0, 1])))
    new = Steps(ready_worker, epoch=1)
    result = await new.run(**prefill(sequence(1, PROMPT, [2, 3])))
    assert len(result.token_ids) == 1
    code, _ = await error_of(old.receive())
    assert code == grpc.StatusCode.FAILED_PRECONDITION


async def test_epoch_may_not_change_within_a_stream(ready_worker: WorkerStub) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    steps.epoch = 2
    await steps.send()
    code, details = await error_of(steps.receive())
    assert (code, details) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "epoch: must be 1 in this stream, got 2",
    )


async def test_worker_answers_while_the_model_is_busy(worker: WorkerStub, llama: Path) -> None:
    loading = asyncio.ensure_future(load(worker, llama))
    described = await worker.Describe(worker_pb2.DescribeRequest())
    assert described.version == __version__
    await loading


async def test_another_model_replaces_the_first(ready_worker: WorkerStub, tmp_path: Path) -> None:
    random_model(llama_config(num_hidden_layers=1), seed=5).save_pretrained(tmp_path)
    await load(ready_worker, tmp_path)
    described = await ready_worker.Describe(worker_pb2.DescribeRequest())
    assert described.num_blocks == 0
    await init_cache(ready_worker)
    result = await Steps(ready_worker, epoch=1).run(**prefill(sequence(1, PROMPT, [0, 1])))
    assert list(result.token_ids) == Driver(load_runner(tmp_path)).generate([PROMPT], 1)[0]
