"""Runs recorded steps on one worker and compares what comes of them with what was recorded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from typing import Any

from launch.replay.epochs import RecordedEpoch
from quire.contract.engine_options import CacheOptions
from quire.contract.errors import ConfigError, InvalidRequestError
from quire.contract.outputs import FinishReason
from quire.contract.recording import EpochHeader
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.contract.workers import LoadSpec
from quire.wire.worker import step_result_from_proto, step_result_to_proto
from worker_svc.worker import Worker

STEPS_OF_A_REPORT = 1000
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that differs.

    Attributes:
        epoch: of the step.
        step_id: of the step.
        sequence_id: whose value it is; None where the step itself failed.
        what: which value.
        recorded: "none" where there was none.
        replayed: likewise.
    """

    epoch: int
    step_id: int
    sequence_id: int | None
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        sequence = "" if self.sequence_id is None else f", sequence {self.sequence_id}"
        return (
            f"step {self.step_id} of epoch {self.epoch}{sequence}: {self.what}: recorded "
            f"{self.recorded}, replayed {self.replayed}"
        )


class Replay:
    """Gives the recorded orders to a worker.

    Answers do not depend on how many ranks shared the model: one worker replays them all.

    Args:
        worker: computes in the calling thread.
        model: directory of the model; "" for the recorded one.
        report: called with a line about what is done.

    Attributes:
        num_steps: compared so far.
    """

    def __init__(self, worker: Worker, model: str, report: Callable[[str], None]) -> None:
        self._worker = worker
        self._model = model
        self._report = report
        # What the worker's cache holds: all of an epoch, up to a step.
        self._epoch, self._step_id = 0, 0
        self._options = CacheOptions()
        self.num_steps = 0

    def run(self, epochs: Sequence[RecordedEpoch]) -> Difference | None:
        """Replay epochs; return the first difference, None if there is none.

        Epochs whose beginning, or the cache that they began with, is not recorded are left out.

        Raises:
            ConfigError: the recording has no tokens, or is of another model, or of other numerics.
            ModelLoadError: the model cannot be used.
        """
        for epoch, after in zip_longest(epochs, epochs[1:]):
            if reason := self._why_left_out(epoch):
                self._report(f"epoch {epoch.header.epoch}: left out: {reason}")
                continue
            self._prepare(epoch.header)
            header = None if after is None else after.header
            if (found := self._run_epoch(epoch, header)) is not None:
                return found
            self._report(f"epoch {self._epoch}: {self._step_id} steps run")
        return None

    def _why_left_out(self, epoch: RecordedEpoch) -> str:
        """Return why an epoch cannot be replayed; empty if it can."""
        header = epoch.header
        if not header.has_tokens:
            raise ConfigError("record_tokens: must have been given to replay tokens; try --orders")
        if not epoch.has_beginning:
            return "its beginning is gone; --orders checks what is left"
        is_known = self._epoch == header.previous_epoch and self._step_id >= header.previous_step_id
        if header.cache.keeps_contents and not is_known:
            return "the cache that it began with was not replayed"
        return ""

    def _prepare(self, header: EpochHeader) -> None:
        """Load the model and allocate the cache, or keep what they are."""
        recorded, cache, load = header.loaded, header.cache, header.load
        spec = LoadSpec(self._model or load.spec.model, load.spec.options)
        loaded = self._worker.load_model(spec, load.served_model_name)
        if loaded.checkpoint_digest != recorded.checkpoint_digest:
            raise ConfigError(f"model: must be the one recorded, got another at {spec.model}")
        if loaded.info.numerics_id != recorded.model.numerics_id:
            raise ConfigError(
                f"numerics_id: must be {recorded.model.numerics_id or 'none'}, as recorded, got "
                f"{loaded.info.numerics_id or 'none'}: another device, or another version"
            )
        if not cache.keeps_contents:
            # Sizes in bytes were those of a rank.
            options = replace(cache.options, kv_cache_gib=None)
            num_bytes = (
                header.host_cache.num_blocks * self._worker.profile_cache(options).block_bytes
            )
            self._options = replace(options, swap_space=-(-num_bytes // MIB) / 1024)
        self._worker.init_cache(replace(cache, options=self._options))
        self._epoch, self._step_id = header.epoch, 0

    def _run_epoch(self, epoch: RecordedEpoch, after: EpochHeader | None) -> Difference | None:
        num_found = 0
        if after is not None and after.previous_epoch == self._epoch:
            num_found = after.previous_step_id
        for orders, result in epoch.steps(self._report):
            # Without a result it was run only if the epoch that follows found it done.
            if result is None and orders.step_id > num_found:
                break
            try:
                replayed = self._worker.execute(orders).result()
            except InvalidRequestError as error:
                what = "orders"
                return Difference(self._epoch, orders.step_id, None, what, "run", error.message)
            self._step_id = orders.step_id
            if result is None:
                continue
            if (found := _first_difference(orders, result, replayed)) is not None:
                sequence_id, what, *values = found
                return Difference(self._epoch, orders.step_id, sequence_id, what, *values)
            self.num_steps += 1
            if self.num_steps % STEPS_OF_A_REPORT == 0:
                self._report(f"epoch {self._epoch}: {self._step_id} steps run")
        return None


def _first_difference(
    orders: SchedulerOutputs, recorded: StepResult, replayed: StepResult
) -> tuple[int, str, Any, Any] | None:
    # As the wire brings it: log-probabilities are float32 there.
    replayed = step_result_from_proto(step_result_to_proto(replayed))
    if not recorded.barred_sequence_ids:
        # Records of older releases have none, which cannot be told from a step without any.
        replayed = replace(replayed, barred_sequence_ids=())
    for before, now in zip_longest(_values(orders, recorded), _values(orders, replayed)):
        if before == now:
            continue
        if before is None:
            return *now[:2], "none", now[2]
        # It got nothing of the kind, where the worker reports something of another sequence.
        is_same = now is not None and now[:2] == before[:2]
        return *before, now[2] if is_same else "none"
    return None


def _values(orders: SchedulerOutputs, result: StepResult) -> list[tuple[int, str, Any]]:
    """Return all that a result says of sequences as (sequence, what, value)."""
    slots = zip(orders.sequence_ids, orders.num_draft_slots, strict=bool(orders.num_draft_slots))
    drafting = [sequence_id for sequence_id, num_slots in slots if num_slots]
    return [
        *((each, "drafts", n) for each, n in zip(drafting, result.num_draft_tokens, strict=True)),
        *((each, "failed", _why_failed(result, each)) for each in result.failed_sequence_ids),
        *((each, "token", token) for each, token in _parallel(result, result.token_ids)),
        *((each, "logprobs", entry) for each, entry in _parallel(result, result.logprobs)),
        *((each, "prompt logprobs", part) for each, part in result.prompt_logprobs),
        *((each, "vector", sha256(vector).hexdigest()) for each, vector in result.vectors),
    ]


def _why_failed(result: StepResult, sequence_id: int) -> str:
    is_barred = sequence_id in result.barred_sequence_ids
    reason = FinishReason.NO_TOKEN if is_barred else FinishReason.ERROR
    return reason.value


def _parallel(result: StepResult, column: Sequence[Any]) -> list[tuple[int, Any]]:
    return list(zip(result.sequence_ids, column, strict=True)) if column else []
