"""The epochs of a recording, each a stream of steps."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from quire.contract.errors import ConfigError
from quire.contract.recording import EpochHeader, Record
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.observe.recording import read_records, record_paths

Step = tuple[SchedulerOutputs, StepResult | None]


@dataclass(frozen=True, slots=True)
class RecordedEpoch:
    """What is left of an epoch.

    Attributes:
        header: of the first file that is left.
        paths: its files.
    """

    header: EpochHeader
    paths: tuple[Path, ...]

    @property
    def has_beginning(self) -> bool:
        """Whether its first file is left."""
        return self.header.file_index == 0

    def steps(self, report: Callable[[str], None]) -> Iterator[Step]:
        """Yield orders with their results, up to records that are missing.

        The last ones may have no result: their workers were lost, or the recording ended.

        Args:
            report: called with a line about what is missing.
        """
        waiting: deque[SchedulerOutputs] = deque()
        for record in self._records():
            if record.num_dropped:
                report(
                    f"epoch {self.header.epoch}: {record.num_dropped} records were dropped; what "
                    "follows is left out"
                )
                return
            if isinstance(record.content, SchedulerOutputs):
                waiting.append(record.content)
            # The first file that is left may begin with the result of orders that are gone.
            elif isinstance(record.content, StepResult) and (
                waiting and waiting[0].step_id == record.content.step_id
            ):
                yield waiting.popleft(), record.content
        yield from ((orders, None) for orders in waiting)

    def _records(self) -> Iterator[Record]:
        for path in self.paths:
            yield from read_records(path)


def read_epochs(directory: Path, first_epoch: int = 0) -> list[RecordedEpoch]:
    """Return what a directory has of each epoch, the oldest first.

    Args:
        directory: of the files.
        first_epoch: the oldest epoch that is wanted.

    Raises:
        ConfigError: there is none.
        OSError: it cannot be read.
    """
    epochs = []
    for _, group in groupby(record_paths(directory), lambda path: path.name.partition("-")[0]):
        paths = tuple(group)
        first = next(read_records(paths[0]), None)
        # None, if the first file was cut off at its beginning.
        if first is not None and isinstance(first.content, EpochHeader):
            epochs.append(RecordedEpoch(first.content, paths))
    found = [epoch for epoch in epochs if epoch.header.epoch >= first_epoch]
    if not found:
        newest = f"; the newest is {epochs[-1].header.epoch}" if epochs else ""
        raise ConfigError(
            f"directory: must hold a recording of epoch {first_epoch} or a later one, got "
            f"{directory}{newest}"
        )
    return found
