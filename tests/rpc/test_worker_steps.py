"""The stream of steps of a worker: orders, results, gaps, orders that do not fit."""

from pathlib import Path

import grpc
import pytest

from quire.v1 import worker_pb2
from tests.factories import VOCAB_SIZE, llama_config, save_model
from tests.models.driver import Driver, load_runner
from tests.rpc.worker_client import (
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


async def test_mirror_and_reset(ready_worker: WorkerStub) -> None:
    steps = Steps(ready_worker, epoch=1)
    await steps.run(**prefill(sequence(3, PROMPT, [6, 1]), sequence(4, [8], [5])))
    await steps.run(
        sequence_ids=[4], num_scheduled_tokens=[1], num_new_blocks=[1], new_block_ids=[7]
    )
    mirror = await ready_worker.Mirror(worker_pb2.MirrorRequest(epoch=1))
    assert {s.sequence_id: s for s in mirror.sequences} == {
        3: worker_pb2.MirroredSequence(
            sequence_id=3, num_tokens=11, num_computed_tokens=10, block_ids=[6, 1]
        ),
        4: worker_pb2.MirroredSequence(
            sequence_id=4, num_tokens=3, num_computed_tokens=2, block_ids=[5, 7]
        ),
    }
    await steps.run(released_sequence_ids=[3])
    mirror = await ready_worker.Mirror(worker_pb2.MirrorRequest(epoch=1))
    assert [s.sequence_id for s in mirror.sequences] == [4]
    await ready_worker.Reset(worker_pb2.ResetRequest(epoch=1))
    assert not (await ready_worker.Mirror(worker_pb2.MirrorRequest(epoch=1))).sequences
    # The stream of this epoch goes on, with nothing held.
    await steps.run(**prefill(sequence(4, [8], [5])))


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
