"""What a step costs besides the model: scheduling, and the message that carries its orders.

Decoding sequences only, each of which gains a token in every step. Prints medians, without and
with a recorder: what a step takes with its thread beside it, which in a cell works while the
workers do, but not here.
Run by `make bench-sched`; exits with 1 if a target is missed.
"""

import gc
import statistics
import sys
import tempfile
import time
from contextlib import closing

from quire.contract.outputs import ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.v1 import worker_pb2
from quire.wire.worker import execute_request_to_proto, step_result_from_proto
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.policy.scheduler import Scheduler
from scheduler_svc.workers.formation import FormedWorkers
from scheduler_svc.workers.recorder import Recorder, epoch_header

BLOCK_SIZE = 16
PROMPT_TOKENS = 256
NUM_STEPS = 300
PHASES = ("schedule", "write", "read", "update")
MODEL = ModelInfo("demo", "LlamaForCausalLM", "bfloat16", 32_000, 4096, (2,), 1)
# Sequences: bytes of the message, microseconds of scheduling and wire together.
TARGETS = {64: (4096, 1000), 256: (4096, 1000), 1024: (8192, 3000)}


def make_scheduler(num_seqs: int) -> Scheduler:
    """Return a scheduler whose `num_seqs` sequences have computed their prompts."""
    tokens_each = PROMPT_TOKENS + NUM_STEPS + 2
    blocks = BlockSpaceManager(BLOCK_SIZE, num_seqs * (tokens_each // BLOCK_SIZE + 1), 0.0)
    scheduler = Scheduler(
        blocks,
        max_num_batched_tokens=num_seqs * PROMPT_TOKENS,
        max_num_seqs=num_seqs,
        max_model_len=2 * tokens_each,
        eos_token_ids=(2,),
        enable_prefix_caching=True,
    )
    # As after a day of work: sequence ids take three bytes on the wire.
    for _ in range(100_000):
        scheduler.abort(scheduler.add(Submission([7], SamplingParams(seed=0)))[0])
    for i in range(num_seqs):
        # Lengths differ, so that about one sequence in sixteen takes a block in each step.
        prompt = [7] * (PROMPT_TOKENS - i % BLOCK_SIZE)
        scheduler.add(
            Submission(prompt, SamplingParams(seed=i, stop_token_ids=(3, 4), max_tokens=None))
        )
    sample(scheduler, next_step(scheduler))
    return scheduler


def next_step(scheduler: Scheduler) -> SchedulerOutputs:
    """Schedule; there is always something to do here."""
    outputs = scheduler.schedule()
    assert outputs is not None
    return outputs


def sample(scheduler: Scheduler, outputs: SchedulerOutputs) -> None:
    """Let every sequence of the batch have sampled a token."""
    scheduler.update(StepResult(outputs.sequence_ids, [1000] * len(outputs.sequence_ids)))


def measure(num_seqs: int, recorder: Recorder | None = None) -> tuple[int, dict[str, float]]:
    """Return the median bytes of a message and the median microseconds of each phase of a step.

    Args:
        num_seqs: sequences of each step.
        recorder: records each, as part of writing and reading; None for none.
    """
    scheduler = make_scheduler(num_seqs)
    sizes: list[int] = []
    phases: dict[str, list[float]] = {name: [] for name in PHASES}
    gc.collect()
    gc.freeze()
    for step_id in range(1, NUM_STEPS + 1):
        started = time.perf_counter()
        outputs = next_step(scheduler)
        scheduled = time.perf_counter()
        outputs.epoch, outputs.step_id = 2**38, step_id
        request = execute_request_to_proto(outputs).SerializeToString()
        if recorder is not None:
            recorder.record_orders(request)
        written = time.perf_counter()
        answer = worker_pb2.StepResult(
            epoch=2**38,
            step_id=step_id,
            sequence_ids=worker_pb2.ExecuteRequest.FromString(
                request
            ).scheduler_outputs.sequence_ids,
            token_ids=[1000] * num_seqs,
        ).SerializeToString()
        answered = time.perf_counter()
        result = step_result_from_proto(worker_pb2.StepResult.FromString(answer))
        if recorder is not None:
            recorder.record_result(result)
        read = time.perf_counter()
        scheduler.update(result)
        updated = time.perf_counter()
        phases["schedule"].append(scheduled - started)
        phases["write"].append(written - scheduled)
        phases["read"].append(read - answered)
        phases["update"].append(updated - read)
        sizes.append(len(request))
    gc.unfreeze()
    medians = {name: 1e6 * statistics.median(values) for name, values in phases.items()}
    return round(statistics.median(sizes)), medians


def measure_recorded(num_seqs: int) -> float:
    """Return the median microseconds of all phases of a step that is recorded with its tokens."""
    with tempfile.TemporaryDirectory() as directory:
        config = SchedulerConfig(model="/m", record=directory, record_tokens=True)
        with closing(Recorder(config)) as recorder:
            recorder.begin(epoch_header(config, FormedWorkers(2**38, MODEL, 1), "bench"))
            _, us = measure(num_seqs, recorder)
        assert not recorder.num_dropped, "the disk is fast enough for a benchmark"
    return sum(us.values())


def main() -> int:
    """Print a line for each number of sequences; return 1 if a target is missed."""
    missed = []
    print(
        "sequences  "
        + "  ".join(f"{name:>8}" for name in (*PHASES, "total", "recorded"))
        + "   message"
    )
    for num_seqs, (max_bytes, max_us) in TARGETS.items():
        size, us = measure(num_seqs)
        total = sum(us.values())
        recorded = measure_recorded(num_seqs)
        columns = "  ".join(f"{value:>5.0f} us" for value in (*us.values(), total, recorded))
        print(f"{num_seqs:>9}  {columns}   {size} bytes")
        if size > max_bytes:
            missed.append(f"{num_seqs} sequences: {size} bytes, target {max_bytes}")
        if total > max_us:
            missed.append(f"{num_seqs} sequences: {total:.0f} us, target {max_us}")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
