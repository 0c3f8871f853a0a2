"""The stream of steps of a worker: orders, results, gaps, orders that do not fit."""

from pathlib import Path

import grpc
import pytest

from quire.contract.block_hashes import extend_block_hashes
from quire.contract.steps import MirroredSequence
from quire.contract.workers import CachedBlock, WorkerMirror
from quire.v1 import worker_pb2
from quire.wire.mirror import mirror_from_proto
from tests.factories import VOCAB_SIZE, llama_config, save_model
from tests.models.driver import Driver, load_runner
from tests.rpc.worker_client import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    POISON,
    PROMPT,
    Steps,
    WorkerStub,
    error_of,
    init_cache,
    load,
    prefill,
    sequence,
)


@pytest.mark.parametrize(("sent", "expected"), [([2], 1), ([1, 3], 2), ([1, 1], 2)])
async def test_gap_ends_the_stream(
    ready_worker: WorkerStub, sent: list[int], expected: int
) -> None:
    steps = Steps(ready_worker, epoch=1)
    for step_id in sent:
        await steps.send(step_id=step_id)
    for _ in sent[:-1]:
        assert (await steps.receive()).WhichOneof("message") == "result"
    gap = (await steps.receive()).gap
    assert (gap.expected_step_id, gap.received_step_id) == (expected, sent[-1])
    with pytest.raises(EOFError):
        await steps.receive()
    # A new stream starts over.
    assert (await Steps(ready_worker, epoch=1).run()).step_id == 1


async def read_mirror(stub: WorkerStub, epoch: int = 1) -> WorkerMirror:
    return mirror_from_proto(await stub.Mirror(worker_pb2.MirrorRequest(epoch=epoch)))


def digests(token_ids: list[int], salt: bytes = b"") -> list[bytes]:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, BLOCK_SIZE, len(token_ids) // BLOCK_SIZE, salt)
    return hashes


async def test_mirror_and_reset(ready_worker: WorkerStub) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.run(**prefill(sequence(3, PROMPT, [6, 1]), sequence(4, [8], [5])))
    await steps.run(
        sequence_ids=[4], num_scheduled_tokens=[1], num_new_blocks=[1], new_block_ids=[7]
    )
    mirror = await read_mirror(ready_worker)
    assert mirror.sequences == (
        MirroredSequence(3, num_tokens=11, num_computed_tokens=10, block_ids=(6, 1)),
        MirroredSequence(4, num_tokens=3, num_computed_tokens=2, block_ids=(5, 7)),
    )
    assert mirror.cache is not None
    assert (mirror.last_step_id, mirror.cache.num_blocks) == (2, NUM_BLOCKS)
    cached = (CachedBlock(6, 1, *digests(PROMPT)),)
    assert mirror.blocks == cached
    await steps.run(released_sequence_ids=[3])
    mirror = await read_mirror(ready_worker)
    assert [s.sequence_id for s in mirror.sequences] == [4]
    assert mirror.blocks == cached, "nobody has written there since"
    await ready_worker.Reset(worker_pb2.ResetRequest(epoch=1))
    mirror = await read_mirror(ready_worker)
    assert (mirror.sequences, mirror.blocks) == ((), cached)
    # The stream of this epoch goes on, with nothing held.
    await steps.run(**prefill(sequence(4, [8], [6])))
    assert (await read_mirror(ready_worker)).blocks == ()


async def test_a_new_scheduler_may_keep_the_cache(ready_worker: WorkerStub) -> None:
    """What is found there continues as what was never interrupted."""
    steps = Steps(ready_worker, epoch=1)
    expected = (await steps.run(**prefill(sequence(1, PROMPT, [3, 2])))).token_ids
    salted = sequence(2, PROMPT, [5, 6])
    salted.cache_salt = b"salt"
    await steps.run(**prefill(salted))
    [block, of_another_salt] = (await read_mirror(ready_worker, epoch=2)).blocks
    assert block == CachedBlock(3, 1, *digests(PROMPT))
    assert of_another_salt == CachedBlock(5, 1, *digests(PROMPT, b"salt"))
    await init_cache(ready_worker, epoch=2, keeps_contents=True)
    found = sequence(1, PROMPT, [3, 4])
    found.num_computed_tokens = BLOCK_SIZE
    orders = prefill(found) | {"num_scheduled_tokens": [len(PROMPT) - BLOCK_SIZE]}
    assert (await Steps(ready_worker, epoch=2).run(**orders)).token_ids == expected

    code, _ = await error_of(init_cache(ready_worker, 3, keeps_contents=True, num_blocks=9))
    assert code is grpc.StatusCode.UNAVAILABLE
    await init_cache(ready_worker, epoch=3)
    assert (await read_mirror(ready_worker, epoch=3)).blocks == ()


async def test_orders_that_do_not_fit_leave_nothing_to_adopt(ready_worker: WorkerStub) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [3, 2])))
    assert (await read_mirror(ready_worker)).blocks
    await steps.send(released_sequence_ids=[9])
    with pytest.raises(grpc.aio.AioRpcError):
        await steps.receive()
    mirror = await read_mirror(ready_worker)
    assert (mirror.sequences, mirror.blocks, mirror.last_step_id) == ((), (), 1)


async def test_sequence_without_finite_logits_fails_alone(
    ready_worker: WorkerStub, llama: Path
) -> None:
    expected = Driver(load_runner(llama)).generate([PROMPT], 4)[0]
    steps = Steps(ready_worker, epoch=1)
    result = await steps.run(
        **prefill(
            sequence(1, [8, POISON, 9], [0]),
            sequence(2, PROMPT, [1, 2]),
        )
    )
    assert list(result.failed_sequence_ids) == [1]
    assert not result.barred_sequence_ids
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


async def test_steps_sent_ahead_need_no_answer_in_between(
    ready_worker: WorkerStub, llama: Path
) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.send(**prefill(sequence(1, PROMPT, [0, 1, 2])))
    for _ in range(7):
        await steps.send(sequence_ids=[1], num_scheduled_tokens=[1], num_new_blocks=[0])
    tokens = [(await steps.receive()).result.token_ids[0] for _ in range(8)]
    assert tokens == Driver(load_runner(llama)).generate([PROMPT], 8)[0]


async def test_blocks_are_copied_before_the_step(ready_worker: WorkerStub) -> None:
    steps = Steps(ready_worker, epoch=1)
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


async def test_same_seed_same_tokens_other_seed_others(worker: WorkerStub, tmp_path: Path) -> None:
    # Not the model with the poison: at this temperature its token may come up.
    await load(worker, save_model(tmp_path, llama_config()))
    await init_cache(worker)
    steps = Steps(worker, epoch=1)
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
    ready_worker: WorkerStub, orders: dict[str, object], field: str
) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    await steps.send(**orders)
    code, details = await error_of(steps.receive())
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{field}: ")
    again = Steps(ready_worker, epoch=1)
    assert len((await again.run(**prefill(sequence(1, PROMPT, [0, 1])))).token_ids) == 1


async def test_cancelled_stream_leaves_the_worker_ready(ready_worker: WorkerStub) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.run(**prefill(sequence(1, PROMPT, [0, 1])))
    steps.call.cancel()
    assert len(
        (await Steps(ready_worker, epoch=1).run(**prefill(sequence(1, PROMPT, [0, 1])))).token_ids
    )
