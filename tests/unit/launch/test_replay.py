"""What is read of a recording, and which orders do not fit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.replay.epochs import RecordedEpoch, read_epochs
from launch.replay.orders import OrderCheck
from launch.replay.values import Replay
from quire.contract.engine_options import CacheOptions
from quire.contract.errors import ConfigError
from quire.contract.outputs import ModelInfo
from quire.contract.recording import EpochHeader, Record
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, SequenceState, StepResult
from quire.contract.workers import (
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
)
from quire.observe.recording import RecordFiles

HEADER = EpochHeader(
    "1",
    0,
    0,
    False,
    LoadRequest(LoadSpec("/m"), "demo", Meeting(epoch=9), "me"),
    LoadResponse(ModelInfo("demo", "LlamaForCausalLM", "float32", 97, 128, (3,), 10), b""),
    CacheSpec(8, CacheOptions(block_size=8)),
    HostCache(2, 1.0),
    0,
    0,
)
PARAMS = SamplingParams(seed=0)


def new(sequence_id: int, block_ids: tuple[int, ...] = ()) -> SequenceState:
    """A sequence of ten tokens."""
    return SequenceState(sequence_id, 0, (0,) * 10, 10, 0, block_ids, PARAMS)


def orders(step_id: int, *batch: tuple[int, int, list[int]], **others: object) -> SchedulerOutputs:
    """Compute so many tokens of each sequence, which gets these blocks before."""
    return SchedulerOutputs(
        sequence_ids=[each[0] for each in batch],
        num_scheduled_tokens=[each[1] for each in batch],
        num_new_blocks=[len(each[2]) for each in batch],
        new_block_ids=[block_id for each in batch for block_id in each[2]],
        epoch=9,
        step_id=step_id,
        **others,  # type: ignore[arg-type]
    )


def result(step_id: int, *sequence_ids: int, failed: Sequence[int] = ()) -> StepResult:
    return StepResult(sequence_ids, [0] * len(sequence_ids), failed, epoch=9, step_id=step_id)


SHARES = SequenceState(4, 0, (0,) * 10, 10, 8, (4,), PARAMS)
PREFILL = orders(1, (1, 10, [0, 1]), (2, 10, [2, 3]), new_sequences=[new(1), new(2)])
BEGUN = (PREFILL, result(1, 1, 2))


def recorded(directory: Path, *contents: object, dropped_before: int = 0) -> None:
    """Write a recording; records are missing before the one of this number."""
    files = RecordFiles(directory, 2**20, with_tokens=True)
    files.append(Record(0, 0, HEADER))
    for number, content in enumerate(contents, 1):
        num_dropped = 3 if number == dropped_before else 0
        files.append(Record(number, num_dropped, content))  # type: ignore[arg-type]
    files.close()


def check(directory: Path, *, is_partial: bool = False) -> tuple[str, int]:
    """What does not fit, and how many steps do."""
    [epoch] = read_epochs(directory)
    if is_partial:
        epoch = RecordedEpoch(replace(epoch.header, file_index=1), epoch.paths)
    followed = OrderCheck(epoch)
    return followed.run(lambda _: None), followed.num_steps


@pytest.mark.parametrize(
    ("contents", "wrong"),
    [
        ([orders(2, (1, 1, []), (2, 1, []))], ""),
        ([orders(2, (1, 1, [])), result(2, 1)], ""),
        ([orders(2, (3, 1, []))], "sequence_ids: must be held by this worker, got 3"),
        ([orders(2, (1, 2, []))], "num_scheduled_tokens: must be at least 1 and fit sequence 1"),
        ([orders(2, (1, 1, [8]))], "new_block_ids: must be below 8, got 8"),
        (
            [orders(2, (1, 1, []), released_sequence_ids=[2], new_sequences=[new(3, (1,))])],
            "must be of one sequence where it is written, got block 1 of sequence 1 in the",
        ),
        ([orders(2, (3, 10, [4, 5]), (4, 10, [5, 6]), new_sequences=[new(3), new(4)])], "block 5"),
        # It begins with a block that another sequence computes in this step.
        ([orders(2, (3, 10, [4, 5]), (4, 2, [6]), new_sequences=[new(3), SHARES])], ""),
        (
            [orders(2, (1, 1, []), blocks_to_copy=[(1, 9)])],
            r"blocks_to_copy: must be below (8, 8), got (1, 9)",
        ),
        (
            [orders(2, (1, 1, []), blocks_to_swap_out=[(1, 2)])],
            r"blocks_to_swap_out: must be below (8, 2), got (1, 2)",
        ),
        (
            [orders(2, (1, 1, []), blocks_to_copy=[(1, 4), (2, 4)])],
            "blocks_to_copy: must be of distinct targets, got one twice",
        ),
        ([orders(2, (1, 1, [])), result(2)], "must have a token of 1, which samples, got none"),
        ([orders(2, (1, 1, [])), result(2, 1, 1)], "must have at most 1 tokens of 1, got 2"),
        ([orders(2, (1, 1, [])), result(2, 1, 2)], "must have at most 0 tokens of 2, got 1"),
    ],
)
def test_orders_that_do_not_fit_are_found(
    contents: list[object], wrong: str, tmp_path: Path
) -> None:
    recorded(tmp_path / "records", *BEGUN, *contents)
    found, num_steps = check(tmp_path / "records")
    assert wrong in found
    assert found.startswith("step 2 of epoch 9: ") == bool(wrong)
    assert num_steps == (1 if wrong else 2)


def test_sequences_go_on_as_far_as_their_drafts_were_right(tmp_path: Path) -> None:
    drafts = orders(2, (1, 1, []), (2, 1, []), num_draft_slots=[3, 0])
    for num_tokens in (1, 2, 4):
        following = orders(3, (1, 1, []), (2, 1, []))
        directory = tmp_path / str(num_tokens)
        recorded(directory, *BEGUN, drafts, result(2, *[1] * num_tokens, 2), following)
        assert check(directory) == ("", 3)
        too_far = orders(3, (1, 2, []))
        directory = tmp_path / f"{num_tokens} and one more"
        recorded(directory, *BEGUN, drafts, result(2, *[1] * num_tokens, 2), too_far)
        found, _ = check(directory)
        assert f"which has {11 + num_tokens} tokens, {10 + num_tokens} of them computed" in found


def test_a_sequence_that_failed_has_no_token(tmp_path: Path) -> None:
    failed = result(2, 2, failed=[1])
    following = orders(3, (1, 1, []), (2, 1, []))
    recorded(tmp_path / "records", *BEGUN, orders(2, (1, 1, []), (2, 1, [])), failed, following)
    assert check(tmp_path / "records") == ("", 3)


def test_sequences_from_before_the_first_file_are_not_followed(tmp_path: Path) -> None:
    before = orders(5, (1, 1, []), (7, 1, [6]), released_sequence_ids=[8])
    brings = orders(6, (7, 1, []), (3, 10, [1, 2]), new_sequences=[new(3)], forks=[(7, 8)])
    wrong = orders(7, (7, 1, []), (3, 2, []))
    contents = [result(4, 7), before, result(5, 1, 7), brings, result(6, 7, 3), wrong]
    recorded(tmp_path / "records", *contents)
    found, num_steps = check(tmp_path / "records", is_partial=True)
    assert num_steps == 2
    assert found.startswith("step 7 of epoch 9: num_scheduled_tokens: must be at least 1")


def test_what_follows_dropped_records_is_left_out(tmp_path: Path) -> None:
    steps = [orders(2, (1, 1, [])), result(2, 1), orders(3, (1, 1, [])), result(3, 1)]
    recorded(tmp_path / "records", *BEGUN, *steps, dropped_before=5)
    [epoch] = read_epochs(tmp_path / "records")
    lines: list[str] = []
    found = [(each.step_id, after and after.step_id) for each, after in epoch.steps(lines.append)]
    assert found == [(1, 1), (2, 2)]
    assert lines == ["epoch 9: 3 records were dropped; what follows is left out"]


def test_a_directory_without_the_epoch_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "records", *BEGUN)
    with pytest.raises(ConfigError, match=r"of epoch 10 or a later one, got .*; the newest is 9"):
        read_epochs(tmp_path / "records", 10)
    with pytest.raises(ConfigError, match="must hold a recording"):
        read_epochs(tmp_path)


@pytest.mark.parametrize(
    ("recorded_barred", "replayed_barred", "wrong"),
    [
        ([1], [1], ""),
        ([1], [], "sequence 1: failed: recorded no_token, replayed error"),
        ([1], [2], "sequence 1: failed: recorded no_token, replayed error"),
        # Records of older releases do not say it.
        ([], [1], ""),
    ],
)
def test_why_a_sequence_failed_is_compared_where_it_was_recorded(
    recorded_barred: list[int], replayed_barred: list[int], wrong: str, tmp_path: Path
) -> None:
    failed = result(1, failed=[1, 2])
    replayed = replace(failed, barred_sequence_ids=replayed_barred)
    worker: Any = SimpleNamespace(
        load_model=lambda spec, name: SimpleNamespace(
            checkpoint_digest=HEADER.loaded.checkpoint_digest, info=HEADER.loaded.model
        ),
        profile_cache=lambda options: SimpleNamespace(block_bytes=1),
        init_cache=lambda spec: None,
        execute=lambda orders: SimpleNamespace(result=lambda: replayed),
    )
    recorded(tmp_path, PREFILL, replace(failed, barred_sequence_ids=recorded_barred))
    [epoch] = read_epochs(tmp_path)
    epoch = RecordedEpoch(replace(epoch.header, has_tokens=True), epoch.paths)
    found = Replay(worker, "", lambda _: None).run([epoch])
    assert ("" if found is None else str(found).partition(", ")[2]) == wrong
