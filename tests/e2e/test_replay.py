"""A recorded run is replayed to the same values, and a value that differs is found."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire import AsyncClient, SamplingParams
from quire.contract.recording import EpochHeader, Record
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.observe.recording import read_records, record_paths
from quire.wire.recording import serialize_record
from tests.e2e.conftest import running_cluster
from tests.e2e.served_model import VOCAB_SIZE, save_served_model
from tests.e2e.test_reference import TINY_CACHE
from tests.e2e.test_sampling_modes import COMMON, answers

QUIRE = str(Path(sys.executable).parent / "quire")
SALT = "salt of a tenant"
# Alone, so that drafts are worth while.
REPEATING = SamplingParams(temperature=0.0, allowed_token_ids=(9,), max_tokens=100)


def replay(directory: Path, *options: str) -> tuple[int, str]:
    """Run `quire replay`; return its status and all it printed."""
    command = [QUIRE, "replay", str(directory), "--num-threads", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def rewritten(source: Path, target: Path, change: Callable[[Record], Record]) -> Path:
    """A copy of a recording with changed records."""
    target.mkdir(mode=0o700)
    for path in record_paths(source):
        records = [serialize_record(change(each), with_tokens=True) for each in read_records(path)]
        (target / path.name).write_bytes(b"".join(records))
    return target


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_served_model(tmp_path_factory.mktemp("model") / "llama", "llama")


@pytest.fixture(scope="module")
def recording(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every sampling mode, with preemptions of both kinds, and after them a second epoch."""
    directory = tmp_path_factory.mktemp("run") / "records"

    async def run() -> None:
        options = {**COMMON, **TINY_CACHE, "speculation": "prompt-lookup"}
        async with (
            running_cluster(
                model, **options, preemption_mode="swap", record=str(directory), record_tokens=True
            ) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            await answers(client, together=True)
            await client.generate_all([9] * 20, REPEATING)
            await client.embed([[9] * 20, [5, 6, 7] * 15])
            async for cells in client.watch_cluster():
                # What was reported before the last request had ended shows less.
                if cells[0].state.accepted_draft_tokens_total > 0:
                    assert cells[0].state.swapped_in_blocks_total > 0
                    break
            # The next epoch begins with what the workers' cache holds.
            scheduler = next(each for each in cluster.services if each.name == "scheduler")
            scheduler.kill()
            await answers(client, together=False)

    asyncio.run(run())
    return directory


def test_a_recorded_run_is_replayed_to_the_same_values(recording: Path) -> None:
    status, text = replay(recording)
    assert status == 0, text
    contents = [each.content for path in record_paths(recording) for each in read_records(path)]
    num_results = sum(isinstance(each, StepResult) for each in contents)
    assert f"same: {num_results} steps" in text
    assert any(each.vectors for each in contents if isinstance(each, StepResult))
    headers = [each for each in contents if isinstance(each, EpochHeader)]
    assert len(headers) == 2
    assert headers[1].cache.keeps_contents
    orders = [each for each in contents if isinstance(each, SchedulerOutputs)]
    assert any(each.forks for each in orders)
    assert any(each.num_draft_slots for each in orders)

    status, text = replay(recording, "--orders")
    assert status == 0, text
    assert f"in order: {len(orders)} steps" in text


def test_the_first_step_and_sequence_that_differ_are_named(recording: Path, tmp_path: Path) -> None:
    found: list[tuple[int, int, int]] = []

    def corrupt(record: Record) -> Record:
        content = record.content
        if isinstance(content, StepResult) and content.step_id >= 40 and len(content.token_ids) > 3:
            found.append((content.step_id, content.sequence_ids[2], content.token_ids[2]))
            tokens = [*content.token_ids]
            tokens[2] = (tokens[2] + 1) % VOCAB_SIZE
            return replace(record, content=replace(content, token_ids=tokens))
        return record

    status, text = replay(rewritten(recording, tmp_path / "records", corrupt))
    assert status == 1, text
    step_id, sequence_id, token_id = found[0]
    assert f"differs: step {step_id} of epoch " in text
    wrong = (token_id + 1) % VOCAB_SIZE
    assert f"sequence {sequence_id}: token: recorded {wrong}, replayed {token_id}" in text


def test_blocks_of_two_sequences_are_found_in_the_orders(recording: Path, tmp_path: Path) -> None:
    given: Counter[int] = Counter()

    def corrupt(record: Record) -> Record:
        """Give a block to the sequence that gets the next one, too."""
        content = record.content
        if not isinstance(content, SchedulerOutputs) or len(content.new_block_ids) < 2:
            return record
        given[content.step_id] += 1
        block_ids = [content.new_block_ids[0]] * len(content.new_block_ids)
        return replace(record, content=replace(content, new_block_ids=block_ids))

    status, text = replay(rewritten(recording, tmp_path / "records", corrupt), "--orders")
    assert status == 1, text
    assert f"wrong: step {min(given)} of epoch " in text
    assert "must be of one sequence where it is written" in text


def test_what_is_left_of_a_rotated_recording_is_checked_for_its_order(
    recording: Path, tmp_path: Path
) -> None:
    """The first file is cut in two, and the beginning lost, as a rotation does it."""
    target = tmp_path / "records"
    target.mkdir(mode=0o700)
    path, *_ = record_paths(recording)
    header, *records = read_records(path)
    assert isinstance(header.content, EpochHeader)
    header = replace(header, content=replace(header.content, file_index=1))
    left = [header, *records[len(records) // 3 :]]
    name = path.name.replace("00000000.", "00000001.")
    (target / name).write_bytes(b"".join(serialize_record(r, with_tokens=True) for r in left))
    status, text = replay(target)
    assert status == 2, text
    assert "its beginning is gone" in text
    assert "no step could be replayed" in text
    status, text = replay(target, "--orders")
    assert status == 0, text
    assert "in order: " in text


def test_recordings_of_other_models_and_without_tokens_are_refused(
    recording: Path, tmp_path: Path
) -> None:
    other = save_served_model(tmp_path / "gpt2", "gpt2")
    status, text = replay(recording, "--model", str(other))
    assert (status, "model: must be the one recorded" in text) == (2, True), text
    status, text = replay(recording, "--from-epoch", str(2**60))
    assert (status, f"of epoch {2**60} or a later one" in text) == (2, True), text
    status, text = replay(tmp_path)
    assert (status, "must hold a recording" in text) == (2, True), text


@pytest.mark.parametrize(("with_tokens", "num_ranks"), [(False, 1), (True, 2)])
async def test_no_file_holds_text_and_none_holds_tokens_unasked(
    model: Path, tmp_path: Path, with_tokens: bool, num_ranks: int
) -> None:
    """Two ranks are replayed on one worker."""
    directory, prompt = tmp_path / "records", "the secret is 4711, and nobody may know"
    options = {"record": str(directory), "record_tokens": with_tokens}
    async with (
        running_cluster(model, **COMMON, **options, tensor_parallel_size=num_ranks) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        # A seed that is drawn may draw an end first, and so no text.
        params = SamplingParams(seed=1, min_tokens=8)
        answer = await client.generate(prompt, params, cache_salt=SALT)
        tokens = await client.tokenize(prompt)
    data = b"".join(path.read_bytes() for path in record_paths(directory))
    assert len(data) > 100
    assert answer.text
    for text in (prompt, SALT, "secret", "4711", answer.text):
        assert text.encode() not in data
    # Packed varints of the prompt, as the orders had them.
    varints = b"".join(
        bytes([token]) if token < 128 else bytes([token % 128 + 128, token // 128])
        for token in tokens
    )
    assert (varints in data) == with_tokens
    status, text = replay(directory, *([] if with_tokens else ["--orders"]))
    assert status == 0, text
    if not with_tokens:
        status, text = replay(directory)
        assert (status, "record_tokens: must have been given" in text) == (2, True), text
