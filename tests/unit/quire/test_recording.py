"""Files of records: rotation, bounds, what is left of a file that is torn, what is stripped."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from quire.contract.errors import ConfigError
from quire.contract.outputs import TokenLogprobs
from quire.contract.recording import EpochHeader, Record
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import PromptLogprobs, SchedulerOutputs, SequenceState, StepResult
from quire.contract.workers import (
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
)
from quire.observe.recording import FILES_AT_MOST, RecordFiles, read_records, record_paths
from quire.wire.recording import parse_records, serialize_record
from quire.wire.worker import execute_request_to_proto
from tests.unit.quire.wire_values import MODEL

SECRET = 77_777
PROMPT = (SECRET, 5, SECRET)


def header(epoch: int = 9) -> Record:
    load = LoadRequest(LoadSpec("/m"), "demo", Meeting(epoch=epoch), "me")
    loaded = LoadResponse(MODEL, b"digest")
    content = EpochHeader(
        "1", 2, 0, True, load, loaded, CacheSpec(4), HostCache(0, 0), epoch - 1, 3
    )
    return Record(1, 0, content)


def result(step_id: int, num_tokens: int = 1) -> Record:
    ids = [5] * num_tokens
    return Record(step_id, 0, StepResult(ids, [SECRET] * num_tokens, epoch=9, step_id=step_id))


def step_ids(directory: Path) -> list[int]:
    """Of all results that a directory holds."""
    return [
        record.content.step_id
        for path in record_paths(directory)
        for record in read_records(path)
        if isinstance(record.content, StepResult)
    ]


def files(directory: Path, max_bytes: int = 2**20, *, with_tokens: bool = True) -> RecordFiles:
    return RecordFiles(directory, max_bytes, with_tokens=with_tokens)


def test_files_of_several_epochs_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    max_bytes, directory = 2**14, tmp_path / "of" / "records"
    writer = files(directory, max_bytes)
    written = []
    for epoch in (9, 10):
        writer.append(header(epoch))
        for step_id in range(1, 500):
            writer.append(result(step_id, num_tokens=8))
            written.append(step_id)
            assert sum(path.stat().st_size for path in record_paths(directory)) <= max_bytes
    writer.close()
    paths = record_paths(directory)
    assert FILES_AT_MOST - 2 <= len(paths) <= FILES_AT_MOST
    kept = step_ids(directory)
    assert kept == written[-len(kept) :], "the newest, without a gap"
    assert writer.num_bytes > max_bytes

    firsts = [next(read_records(path)).content for path in paths]
    assert {first.epoch for first in firsts if isinstance(first, EpochHeader)} == {10}
    indexes = [first.file_index for first in firsts if isinstance(first, EpochHeader)]
    assert indexes == list(range(indexes[0], indexes[0] + len(paths)))
    assert indexes[0] > 0
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700

    # Files of an earlier process count, and other files are nobody's.
    (directory / "notes").write_text("mine")
    again = files(directory, max_bytes)
    again.append(header(11))
    assert sum(path.stat().st_size for path in record_paths(directory)) <= max_bytes
    assert (directory / "notes").read_text() == "mine"
    again.close()


def test_a_file_is_read_up_to_a_record_that_was_not_written_to_its_end() -> None:
    records = [header(), result(1, 3), result(2, 300)]
    parts = [serialize_record(each, with_tokens=True) for each in records]
    data = b"".join(parts)
    ends = [len(b"".join(parts[:count])) for count in range(4)]
    for size in range(len(data) + 1):
        num_whole = sum(size >= end for end in ends) - 1
        assert len(list(parse_records(data[:size]))) == num_whole, size
    # A disk may leave zeros where a file grew and nothing was written.
    assert len(list(parse_records(data + bytes(100)))) == 3


def test_a_record_that_cannot_be_written_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = files(tmp_path / "records")
    writer.append(header())
    writer.append(result(1))
    write = os.write

    def half(fd: int, data: memoryview) -> int:
        if len(data) < 10:
            raise OSError("no space left")
        return write(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="no space left"):
            writer.append(result(2))
    writer.append(result(3))
    with pytest.raises(OSError, match="larger than a file"):
        writer.append(result(4, num_tokens=2**17))
    writer.append(result(5))
    writer.close()
    assert step_ids(tmp_path / "records") == [1, 3, 5]


def test_what_a_token_was_is_written_only_where_it_is_asked_for() -> None:
    secret = SamplingParams(
        seed=SECRET,
        logit_bias={SECRET: 1.0},
        stop_token_ids=(SECRET,),
        min_tokens=2,
        bad_words_token_ids=((SECRET,),),
        allowed_token_ids=(SECRET,),
    )
    state = SequenceState(
        7, 0, PROMPT, 3, 0, (1, 2), secret, traceparent="00-1", cache_salt=b"of a tenant"
    )
    orders = SchedulerOutputs(
        new_sequences=[state], sequence_ids=[7], num_scheduled_tokens=[3], num_new_blocks=[0]
    )
    orders.chosen_tokens = [(7, SECRET)]
    entry = TokenLogprobs((SECRET, 5), (-1.5, -2.5), 1)
    varint = bytes([0xD1, 0xDF, 0x04])  # of SECRET
    answer = StepResult(
        [7],
        [SECRET],
        logprobs=[entry],
        prompt_logprobs=[(7, PromptLogprobs(0, [entry]))],
        vectors=[(7, varint * 4)],
    )
    for content in (orders, execute_request_to_proto(orders).SerializeToString(), answer):
        record = Record(1, 0, content)
        kept, stripped = (
            serialize_record(record, with_tokens=with_tokens) for with_tokens in (True, False)
        )
        assert varint in kept
        assert b"of a tenant" not in kept, "texts are never recorded"
        assert varint not in stripped

    [back] = parse_records(serialize_record(Record(1, 0, orders), with_tokens=False))
    assert isinstance(back.content, SchedulerOutputs)
    [state_back] = back.content.new_sequences
    assert list(state_back.token_ids) == [0, 0, 0], "as many as there were"
    assert list(state_back.block_ids) == [1, 2]
    assert state_back.sampling_params == SamplingParams(seed=0, max_tokens=None)
    [with_tokens] = parse_records(serialize_record(Record(1, 0, orders), with_tokens=True))
    assert isinstance(with_tokens.content, SchedulerOutputs)
    [state_back] = with_tokens.content.new_sequences
    assert list(state_back.token_ids) == list(PROMPT)
    assert state_back.sampling_params.logit_bias == {SECRET: 1.0}


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    with pytest.raises(ConfigError, match=r"record: must be .* its owner alone .* mode 0755"):
        files(shared)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="record: must be a directory that can be written"):
        files(tmp_path / "file")


def test_the_header_of_a_file_names_its_place(tmp_path: Path) -> None:
    writer = files(tmp_path / "records", 2**13)
    writer.append(header())
    for step_id in range(1, 30):
        writer.append(result(step_id, num_tokens=20))
    writer.close()
    first, second, *_ = record_paths(tmp_path / "records")
    assert next(read_records(first)) == header()
    content = header().content
    assert isinstance(content, EpochHeader)
    assert next(read_records(second)).content == replace(content, file_index=1)
