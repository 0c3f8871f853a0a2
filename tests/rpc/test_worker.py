"""The worker service over a real server: life cycle, epochs, gaps, failures."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest
import torch

from quire import __version__
from quire.v1 import worker_pb2, worker_pb2_grpc
from tests.factories import VOCAB_SIZE, llama_config, random_model, save_model
from tests.models.driver import Driver, load_runner
from tests.rpc.worker_client import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    Steps,
    init_cache,
    load,
    prefill,
    running_worker,
    sequence,
)

Stub: TypeAlias = "worker_pb2_grpc.WorkerServiceAsyncStub"

PROMPT = [5, 9, 77, 30, 31, 8, 100, 12, 60, 3]
POISON = 129


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in which one token's embedding is not a number."""
    directory = tmp_path_factory.mktemp("llama")
    model = random_model(llama_config())
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.nan
    model.save_pretrained(directory)
    return directory


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    async with running_worker() as stub:
        yield stub


@pytest.fixture
async def ready(stub: Stub, model: Path) -> Stub:
    await load(stub, model)
    await init_cache(stub)
    return stub


async def error_of(awaitable: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaitable  # type: ignore[misc]
    return raised.value.code(), raised.value.details()


async def test_life_cycle(stub: Stub, model: Path) -> None:
    empty = await stub.Describe(worker_pb2.DescribeRequest())
    assert (empty.version, empty.device, empty.epoch) == (__version__, "cpu", 0)
    assert empty.isa
    assert not empty.HasField("model")
    assert empty.num_blocks == 0

    options = worker_pb2.LoadOptions(max_model_len=128)
    loaded = await load(stub, model, options=options)
    assert loaded.model.name == "tiny"
    assert loaded.model.architecture == "LlamaForCausalLM"
    assert loaded.model.max_model_len == 128
    assert loaded.model.vocab_size == VOCAB_SIZE
    assert await load(stub, model, options=options) == loaded

    profile = await stub.ProfileCache(
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

    await init_cache(stub)
    full = await stub.Describe(worker_pb2.DescribeRequest())
    assert (full.epoch, full.num_blocks, full.model) == (1, NUM_BLOCKS, loaded.model)

    steps = Steps(stub, epoch=1)
    result = await steps.run(**prefill(sequence(7, PROMPT, [4, 9, 2])))
    tokens = list(result.token_ids)
    assert list(result.sequence_ids) == [7]
    assert result.epoch == 1
    assert result.worker_us >= result.model_us > 0
    for _ in range(7):
        tokens.extend((await steps.decode([7])).token_ids)
    assert tokens == Driver(load_runner(model)).generate([PROMPT], 8)[0]
    await steps.call.done_writing()
    with pytest.raises(EOFError):
        await steps.receive()


async def test_profile_is_bounded_by_what_sequences_can_use(ready: Stub) -> None:
    profile = await ready.ProfileCache(
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
    ],
)
async def test_bad_profile(ready: Stub, fields: dict[str, float], message: str) -> None:
    good = {"block_size": 16, "max_num_batched_tokens": 32, "max_num_seqs": 3}
    options = worker_pb2.CacheOptions(**{**good, **fields})
    request = worker_pb2.ProfileCacheRequest(epoch=1, options=options)
    code, details = await error_of(ready.ProfileCache(request))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert message in details


async def test_order_of_calls_is_checked(stub: Stub, model: Path) -> None:
    code, details = await error_of(init_cache(stub))
    assert (code, details) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "model: must be loaded first, by LoadModel",
    )
    await load(stub, model)
    steps = Steps(stub, epoch=1)
    await steps.send(**prefill(sequence(1, PROMPT, [0, 1])))
    code, details = await error_of(steps.receive())
    assert details == "cache: must be allocated first, by InitCache"


async def test_unusable_model_is_one_line_and_leaves_the_worker_alive(
    stub: Stub, model: Path, tmp_path: Path
) -> None:
    code, details = await error_of(load(stub, tmp_path))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert details == f"{tmp_path}: no config.json; is it a Hugging Face model directory?"
    await load(stub, model)


async def test_stale_epoch_is_refused_everywhere(ready: Stub, model: Path) -> None:
    await ready.Reset(worker_pb2.ResetRequest(epoch=5))
    steps = Steps(ready, epoch=4)
    await steps.send()
    for awaitable in (
        load(ready, model, epoch=4),
        ready.ProfileCache(worker_pb2.ProfileCacheRequest(epoch=4)),
        init_cache(ready, epoch=4),
        ready.Mirror(worker_pb2.MirrorRequest(epoch=4)),
        ready.Reset(worker_pb2.ResetRequest(epoch=4)),
        steps.receive(),
    ):
        code, details = await error_of(awaitable)
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert details == "epoch 4 is over; this worker obeys epoch 5"
    code, _ = await error_of(ready.Reset(worker_pb2.ResetRequest(epoch=0)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT


async def test_newer_epoch_ends_an_idle_stream(ready: Stub) -> None:
    old = Steps(ready, epoch=1)
    await old.run(**prefill(sequence(1, PROMPT, [0, 1])))
    await ready.Reset(worker_pb2.ResetRequest(epoch=2))
    code, details = await error_of(old.receive())
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert details == "the stream of epoch 1 was replaced by a newer one"
    assert not (await ready.Mirror(worker_pb2.MirrorRequest(epoch=2))).sequences


async def test_newer_stream_ends_the_older_and_starts_empty(ready: Stub) -> None:
    old = Steps(ready, epoch=1)
    await old.run(**prefill(sequence(1, PROMPT, [0, 1])))
    new = Steps(ready, epoch=1)
    result = await new.run(**prefill(sequence(1, PROMPT, [2, 3])))
    assert len(result.token_ids) == 1
    code, _ = await error_of(old.receive())
    assert code == grpc.StatusCode.FAILED_PRECONDITION


async def test_epoch_may_not_change_within_a_stream(ready: Stub) -> None:
    steps = Steps(ready, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    steps.epoch = 2
    await steps.send()
    code, details = await error_of(steps.receive())
    assert (code, details) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "epoch: must be 1 in this stream, got 2",
    )


@pytest.mark.parametrize(("sent", "expected"), [([2], 1), ([1, 3], 2), ([1, 1], 2)])
async def test_gap_ends_the_stream(ready: Stub, sent: list[int], expected: int) -> None:
    steps = Steps(ready, epoch=1)
    for step_id in sent:
        await steps.send(step_id=step_id)
    for _ in sent[:-1]:
        assert (await steps.receive()).WhichOneof("message") == "result"
    gap = (await steps.receive()).gap
    assert (gap.expected_step_id, gap.received_step_id) == (expected, sent[-1])
    with pytest.raises(EOFError):
        await steps.receive()
    # A new stream starts over.
    assert (await Steps(ready, epoch=1).run()).step_id == 1


async def test_mirror_and_reset(ready: Stub) -> None:
    steps = Steps(ready, epoch=1)
    await steps.run(**prefill(sequence(3, PROMPT, [6, 1]), sequence(4, [8], [5])))
    await steps.run(
        sequence_ids=[4], num_scheduled_tokens=[1], num_new_blocks=[1], new_block_ids=[7]
    )
    mirror = await ready.Mirror(worker_pb2.MirrorRequest(epoch=1))
    assert {s.sequence_id: s for s in mirror.sequences} == {
        3: worker_pb2.MirroredSequence(
            sequence_id=3, num_tokens=11, num_computed_tokens=10, block_ids=[6, 1]
        ),
        4: worker_pb2.MirroredSequence(
            sequence_id=4, num_tokens=3, num_computed_tokens=2, block_ids=[5, 7]
        ),
    }
    await steps.run(released_sequence_ids=[3])
    mirror = await ready.Mirror(worker_pb2.MirrorRequest(epoch=1))
    assert [s.sequence_id for s in mirror.sequences] == [4]
    await ready.Reset(worker_pb2.ResetRequest(epoch=1))
    assert not (await ready.Mirror(worker_pb2.MirrorRequest(epoch=1))).sequences
    # The stream of this epoch goes on, with nothing held.
    await steps.run(**prefill(sequence(4, [8], [5])))


async def test_sequence_without_finite_logits_fails_alone(ready: Stub, model: Path) -> None:
    expected = Driver(load_runner(model)).generate([PROMPT], 4)[0]
    steps = Steps(ready, epoch=1)
    result = await steps.run(
        **prefill(
            sequence(1, [8, POISON, 9], [0]),
            sequence(2, PROMPT, [1, 2]),
        )
    )
    assert list(result.failed_sequence_ids) == [1]
    assert list(result.sequence_ids) == [2]
    tokens = list(result.token_ids)
    # Sent ahead by a scheduler that did not know yet.
    result = await steps.decode([1, 2])
    assert list(result.failed_sequence_ids) == [1]
    tokens.extend(result.token_ids)
    await steps.send(released_sequence_ids=[1])
    assert not (await steps.receive()).result.failed_sequence_ids
    for _ in range(2):
        tokens.extend((await steps.decode([2])).token_ids)
    assert tokens == expected


async def test_steps_sent_ahead_need_no_answer_in_between(ready: Stub, model: Path) -> None:
    steps = Steps(ready, epoch=1)
    await steps.send(**prefill(sequence(1, PROMPT, [0, 1, 2])))
    for _ in range(7):
        await steps.send(sequence_ids=[1], num_scheduled_tokens=[1], num_new_blocks=[0])
    tokens = [(await steps.receive()).result.token_ids[0] for _ in range(8)]
    assert tokens == Driver(load_runner(model)).generate([PROMPT], 8)[0]


async def test_blocks_are_copied_before_the_step(ready: Stub) -> None:
    steps = Steps(ready, epoch=1)
    first = await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    second = await steps.decode([1])
    # A copy of the sequence as it stood before `second`, over copied blocks.
    fork = sequence(2, [*PROMPT, *first.token_ids], [10, 11])
    fork.num_computed_tokens = len(PROMPT)
    forked = await steps.run(
        new_sequences=[fork],
        blocks_to_copy=[0, 20, 20, 10, 1, 11],
        sequence_ids=[2],
        num_scheduled_tokens=[1],
        num_new_blocks=[0],
    )
    assert list(forked.token_ids) == list(second.token_ids)


async def test_same_seed_same_tokens_other_seed_others(stub: Stub, tmp_path: Path) -> None:
    # Not the model with the poison: at this temperature its token may come up.
    await load(stub, save_model(tmp_path, llama_config()))
    await init_cache(stub)
    steps = Steps(stub, epoch=1)
    states = [
        sequence(number, PROMPT, [3 * number, 3 * number + 1, 3 * number + 2], **params)
        for number, params in enumerate(
            [
                {"temperature": 2.0, "seed": 2**64 - 1},
                {"temperature": 2.0, "seed": 2**64 - 1},
                {"temperature": 2.0, "seed": 5},
                {"temperature": 2.0, "seed": 5, "top_k": 1},
                {"temperature": 0.0, "seed": 5},
            ]
        )
    ]
    results = [await steps.run(**prefill(*states))]
    results += [await steps.decode([0, 1, 2, 3, 4]) for _ in range(9)]
    columns = list(zip(*(result.token_ids for result in results), strict=True))
    assert columns[0] == columns[1]
    assert columns[0] != columns[2]
    assert columns[3] == columns[4]


def replaced(sequence_ids: list[int], places: list[int], block_ids: list[int]) -> dict[str, object]:
    return {
        "replaced_sequence_ids": sequence_ids,
        "replaced_places": places,
        "replaced_block_ids": block_ids,
    }


@pytest.mark.parametrize(
    ("orders", "field"),
    [
        ({"sequence_ids": [9], "num_scheduled_tokens": [1], "num_new_blocks": [0]}, "sequence_ids"),
        ({"released_sequence_ids": [9]}, "released_sequence_ids"),
        (prefill(sequence(1, PROMPT, [4, 5])), "new_sequences"),
        (prefill(sequence(2, [VOCAB_SIZE], [4])), "token_ids"),
        (prefill(sequence(2, [], [4])), "token_ids"),
        (prefill(sequence(2, PROMPT, [4, NUM_BLOCKS])), "block_ids"),
        (prefill(sequence(2, PROMPT, [4])), "num_scheduled_tokens"),
        (prefill(sequence(2, PROMPT, [4, 5], temperature=-1.0)), "temperature"),
        ({"blocks_to_copy": [1]}, "blocks_to_copy"),
        ({"blocks_to_copy": [1, NUM_BLOCKS]}, "blocks_to_copy"),
        ({"blocks_to_swap_out": [1, 10**9]}, "blocks_to_swap_out"),
        ({"blocks_to_swap_in": [1, NUM_BLOCKS]}, "blocks_to_swap_in"),
        ({"forks": [1]}, "forks"),
        ({"forks": [2, 3]}, "forks"),
        ({"forks": [1, 1]}, "forks"),
        ({"chosen_sequence_ids": [1], "chosen_token_ids": []}, "chosen_token_ids"),
        ({"chosen_sequence_ids": [1], "chosen_token_ids": [VOCAB_SIZE]}, "chosen_token_ids"),
        ({"chosen_sequence_ids": [2], "chosen_token_ids": [1]}, "sequence_ids"),
        (replaced([1], [2], [3]), "replaced_places"),
        (replaced([1], [0], [NUM_BLOCKS]), "replaced_block_ids"),
        (replaced([1], [0, 1], [3]), "replaced_block_ids"),
        (
            {"sequence_ids": [1], "num_scheduled_tokens": [2], "num_new_blocks": [0]},
            "num_scheduled_tokens",
        ),
        ({"sequence_ids": [1, 1], "num_scheduled_tokens": [1, 1]}, "sequence_ids"),
        ({"sequence_ids": [1], "num_scheduled_tokens": [1]}, "num_new_blocks"),
    ],
)
async def test_orders_that_do_not_fit_end_the_stream_and_nothing_else(
    ready: Stub, orders: dict[str, object], field: str
) -> None:
    steps = Steps(ready, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    await steps.send(**orders)
    code, details = await error_of(steps.receive())
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{field}: ")
    again = Steps(ready, epoch=1)
    assert len((await again.run(**prefill(sequence(1, PROMPT, [0, 1])))).token_ids) == 1


async def test_worker_answers_while_the_model_is_busy(stub: Stub, model: Path) -> None:
    loading = asyncio.ensure_future(load(stub, model))
    described = await stub.Describe(worker_pb2.DescribeRequest())
    assert described.version == __version__
    await loading


async def test_another_model_replaces_the_first(ready: Stub, tmp_path: Path) -> None:
    random_model(llama_config(num_hidden_layers=1), seed=5).save_pretrained(tmp_path)
    await load(ready, tmp_path)
    described = await ready.Describe(worker_pb2.DescribeRequest())
    assert described.num_blocks == 0
    await init_cache(ready)
    result = await Steps(ready, epoch=1).run(**prefill(sequence(1, PROMPT, [0, 1])))
    assert list(result.token_ids) == Driver(load_runner(tmp_path)).generate([PROMPT], 1)[0]


async def test_cancelled_stream_leaves_the_worker_ready(ready: Stub) -> None:
    steps = Steps(ready, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    steps.call.cancel()
    assert len((await Steps(ready, epoch=1).run(**prefill(sequence(1, PROMPT, [0, 1])))).token_ids)
