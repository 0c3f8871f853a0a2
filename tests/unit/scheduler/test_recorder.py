"""The thread that records: nothing waits for a disk that is slow or full."""

import threading
from pathlib import Path

import pytest

from quire.contract.errors import ConfigError
from quire.contract.outputs import ModelInfo
from quire.contract.recording import EpochHeader, Record
from quire.contract.steps import StepResult
from quire.observe.recording import RecordFiles, read_records, record_paths
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers import recorder as module
from scheduler_svc.workers.formation import FormedWorkers
from scheduler_svc.workers.recorder import Recorder, epoch_header

MODEL = ModelInfo("demo", "LlamaForCausalLM", "float32", 97, 128, (3,), 10)


def config(directory: Path, **options: object) -> SchedulerConfig:
    return SchedulerConfig(model="/m", record=str(directory), **options)  # type: ignore[arg-type]


def begun(settings: SchedulerConfig) -> Recorder:
    recorder = Recorder(settings)
    recorder.begin(epoch_header(settings, FormedWorkers(9, MODEL, 64), "me"))
    return recorder


def contents(directory: Path) -> list[Record]:
    return [record for path in record_paths(directory) for record in read_records(path)]


def result(step_id: int) -> StepResult:
    return StepResult([7] * 10, [5] * 10, epoch=9, step_id=step_id)


def test_what_is_queued_is_written_before_the_end(tmp_path: Path) -> None:
    recorder = begun(config(tmp_path / "records", record_tokens=True))
    for step_id in range(1, 50):
        recorder.record_result(result(step_id))
    recorder.close()
    header, *results = contents(tmp_path / "records")
    assert isinstance(header.content, EpochHeader)
    assert header.content.epoch == 9
    assert [each.content.step_id for each in results] == [*range(1, 50)]  # type: ignore[union-attr]
    times = [record.monotonic_ns for record in results]
    assert times == sorted(times)
    assert (recorder.num_records, recorder.num_dropped) == (50, 0)


def test_records_that_a_slow_disk_does_not_take_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_write = threading.Event(), threading.Event()
    append = RecordFiles.append

    def slowly(self: RecordFiles, record: Record) -> None:
        is_writing.set()
        may_write.wait()
        append(self, record)

    monkeypatch.setattr(RecordFiles, "append", slowly)
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 4000)
    recorder = begun(config(tmp_path / "records"))
    is_writing.wait()
    for step_id in range(1, 11):
        recorder.record_result(result(step_id))  # 1000 bytes each
    assert recorder.num_dropped == 6
    may_write.set()
    recorder.close()
    monkeypatch.setattr(RecordFiles, "append", append)
    _, *results = contents(tmp_path / "records")
    assert [each.content.step_id for each in results] == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_the_record_after_a_failure_says_how_many_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RecordFiles.append

    def fails(self: RecordFiles, record: Record) -> None:
        if isinstance(record.content, StepResult) and record.content.step_id in (2, 3):
            raise OSError("no space left")
        append(self, record)

    monkeypatch.setattr(RecordFiles, "append", fails)
    recorder = begun(config(tmp_path / "records"))
    for step_id in range(1, 6):
        recorder.record_result(result(step_id))
    recorder.close()
    _, *results = contents(tmp_path / "records")
    assert [(record.num_dropped) for record in results] == [0, 2, 0]
    assert (recorder.num_records, recorder.num_dropped) == (4, 2)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record: must name a directory with record_tokens"):
        SchedulerConfig(model="/m", record_tokens=True)
    with pytest.raises(ConfigError, match=r"record_mb: must be in \[16, 1048576\], got 1"):
        config(tmp_path, record_mb=1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="record: must be a directory"):
        Recorder(config(tmp_path / "file"))
