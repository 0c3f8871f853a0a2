"""Records the steps of a cell, on a thread of its own: no step waits for the disk."""

import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from quire.contract.recording import Content, EpochHeader, Record
from quire.contract.steps import StepResult
from quire.contract.workers import (
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
)
from quire.observe.log import get_logger
from quire.observe.recording import RecordFiles
from quire.version import __version__
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.formation import FormedWorkers

# What may wait for the disk. A decoding step of 256 sequences is about 4 KB, its result as much.
MAX_QUEUED_BYTES = 32 * 2**20
# Of a result in memory, at most: of a token, or of one that is reported beside it.
_BYTES_OF_A_TOKEN = 100
CLOSE_TIMEOUT_S = 5.0

log = get_logger()


class Recorder:
    """Writes what the workers are sent and what they answer to rotated files.

    What comes faster than the disk takes it is dropped and counted, in the next record, too.

    Args:
        config: where and what to record.

    Attributes:
        num_records: written so far.
        num_dropped: lost so far: the disk was too slow, or did not take them.

    Raises:
        ConfigError: the directory cannot be used.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._files = RecordFiles(
            Path(config.record), config.record_mb * 2**20, with_tokens=config.record_tokens
        )
        self.num_records = 0
        self.num_dropped = 0
        # Since the last record that was queued, and since the last that was written.
        self._num_refused, self._num_failed = 0, 0
        self._queue: deque[Record] = deque()
        self._queued_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return self._files.num_bytes

    def begin(self, header: EpochHeader) -> None:
        """Begin the files of an epoch."""
        self._put(header, 0)

    def record_orders(self, request: bytes) -> None:
        """Record a step's orders.

        Args:
            request: the serialised ExecuteRequest that the workers are sent.
        """
        self._put(request, len(request))

    def record_result(self, result: StepResult) -> None:
        """Record the result of a step."""
        reported = [*result.logprobs]
        for _, part in result.prompt_logprobs:
            reported += part.logprobs
        num_tokens = len(result.token_ids) + sum(len(each.token_ids) for each in reported)
        num_bytes = sum(len(vector) for _, vector in result.vectors)
        self._put(result, _BYTES_OF_A_TOKEN * num_tokens + num_bytes)

    def _put(self, content: Content, num_bytes: int) -> None:
        """Queue a record, which takes so many bytes in memory."""
        now = time.monotonic_ns()
        with self._changed:
            if num_bytes and self._queued_bytes + num_bytes > MAX_QUEUED_BYTES:
                self._num_refused += 1
                self.num_dropped += 1
                return
            self._queue.append(Record(now, self._num_refused, content))
            self._num_refused = 0
            self._queued_bytes += num_bytes
            self._changed.notify()

    def close(self) -> None:
        """Write what is queued and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        while records := self._take():
            for record in records:
                self._write(record)
        self._files.close()

    def _take(self) -> deque[Record]:
        """Wait for records and return them; none in the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            records, self._queue, self._queued_bytes = self._queue, deque(), 0
            return records

    def _write(self, record: Record) -> None:
        try:
            self._files.append(replace(record, num_dropped=record.num_dropped + self._num_failed))
        except OSError as error:
            if not self._num_failed:
                log.warning("recording_failed", error=str(error))
            self._num_failed += 1 + record.num_dropped
            with self._changed:
                self.num_dropped += 1
        else:
            self._num_failed = 0
            self.num_records += 1


def epoch_header(
    config: SchedulerConfig, formed: FormedWorkers, scheduler_name: str
) -> EpochHeader:
    """Return the header of the epoch under which workers are formed."""
    contents = formed.contents
    return EpochHeader(
        version=__version__,
        unix_ns=time.time_ns(),
        file_index=0,
        has_tokens=config.record_tokens,
        load=LoadRequest(
            LoadSpec(config.model, config, 0, config.num_ranks),
            config.model_name,
            Meeting(epoch=formed.epoch),
            scheduler_name,
        ),
        loaded=LoadResponse(formed.model, formed.checkpoint_digest),
        cache=CacheSpec(
            formed.num_blocks,
            config,
            keeps_contents=bool(contents.blocks or contents.host_blocks),
        ),
        host_cache=HostCache(formed.num_host_blocks, formed.swap_block_us, formed.cache_bytes),
        previous_epoch=formed.previous_epoch,
        previous_step_id=contents.last_step_id,
    )
