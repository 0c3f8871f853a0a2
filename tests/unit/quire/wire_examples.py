"""A domain object for each message of the protos, with which it is sent and read."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from google.protobuf.message import Message

from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.errors import DrainingError, InvalidRequestError, OverloadedError
from quire.contract.inputs import DetokenizeInput, GenerateInput, TokenizeInput
from quire.contract.outputs import (
    CellState,
    CellStatus,
    Delta,
    Finished,
    FinishReason,
    Hypothesis,
    ModelInfo,
    Started,
    TokenLogprobs,
)
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import (
    Announcement,
    Cancellation,
    PrefixDigestDelta,
    Queued,
    Refused,
    StepOutputs,
    Submission,
    Welcome,
)
from quire.contract.steps import (
    MirroredSequence,
    PromptLogprobs,
    SchedulerOutputs,
    SequenceState,
    StepGap,
    StepResult,
)
from quire.contract.time_breakdown import TimeBreakdown
from quire.contract.workers import (
    CacheProfile,
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
    WorkerDescription,
)
from quire.wire import common, inference, scheduler, worker

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EPOCH = 2**40


@dataclass(frozen=True)
class Example:
    """A domain object, and the two functions that its message stands between.

    Attributes:
        value: every field of it differs from what an absent field is read as.
        write: returns its message.
        read: returns the domain object of a message.
    """

    value: Any
    write: Callable[[Any], Message]
    read: Callable[[Any], Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.write(self.value).DESCRIPTOR.name}-{type(self.value).__name__}"


MODEL = ModelInfo(
    "demo", "LlamaForCausalLM", "bfloat16", 2**17, 2**15, (1, 2), 2**40, "5f7a", "ac14", "w8a8"
)
STATE = CellState(
    **{each.name: 2 + index for index, each in enumerate(fields(CellState))} | {"draining": True}
)
TIME = TimeBreakdown(
    **{each.name: 2**33 + index for index, each in enumerate(fields(TimeBreakdown))}
)
LOGPROBS = [TokenLogprobs((3, 8), (-0.5, -0.25), 2, ("a", "\ufffd")), TokenLogprobs()]
PROMPT_LOGPROBS = PromptLogprobs(7, LOGPROBS)
HYPOTHESIS = Hypothesis((3, 4), -1.5, FinishReason.LENGTH, tuple(LOGPROBS))
# What a worker's sampler reads.
SAMPLED = SamplingParams(
    temperature=0.5,
    top_p=0.25,
    top_k=9,
    min_p=0.125,
    seed=2**64 - 1,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    logit_bias={7: -3.0},
    allowed_token_ids=(7, 8),
    min_tokens=2,
    logprobs=3,
    prompt_logprobs=2,
    bad_words_token_ids=((5, 6), (7,)),
    stop_token_ids=(4,),
    ignore_eos=True,
)
PARAMS = replace(
    SAMPLED,
    n=2,
    best_of=3,
    bad_words=("bad",),
    max_tokens=9,
    stop=("\n\n",),
    include_stop_str_in_output=True,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
    truncate_prompt_tokens=5,
)
BEAMS = SamplingParams(
    n=2, use_beam_search=True, temperature=0.0, length_penalty=0.5, early_stopping="never"
)
SUBMISSION = Submission(
    prompt_token_ids=[5, 6],
    sampling_params=PARAMS,
    outputs={0: [7], 2: []},
    request_number=1,
    request_id="mine",
    priority=-3,
    cache_salt="tenant",
    traceparent=TRACEPARENT,
    include_time_breakdown=True,
)
ORDERS = SchedulerOutputs(
    forks=[(5, 2**63), (6, 7)],
    chosen_tokens=[(5, 3), (2**63, 2**32 - 1)],
    released_sequence_ids=[2**63, 1],
    new_sequences=[SequenceState(5, 1, [7, 8, 9], 2, 2, [4, 3], SAMPLED, 8, TRACEPARENT)],
    blocks_to_swap_out=[(3, 0)],
    blocks_to_swap_in=[(1, 7), (2, 8)],
    blocks_to_copy=[(1, 2), (2, 6)],
    replaced_blocks=[(5, 2, 6), (7, 0, 2)],
    sequence_ids=[5, 6],
    num_scheduled_tokens=[1, 300],
    num_new_blocks=[0, 2],
    new_block_ids=[2**32 - 1, 0],
    num_draft_slots=[2, 0],
    epoch=EPOCH,
    step_id=17,
    traceparent=TRACEPARENT,
)
RESULT = StepResult(
    sequence_ids=[5, 6],
    token_ids=[7, 8],
    failed_sequence_ids=[9],
    logprobs=LOGPROBS,
    prompt_logprobs=[(5, PROMPT_LOGPROBS)],
    num_draft_tokens=[3, 0],
    epoch=EPOCH,
    step_id=17,
    model_us=10,
    sample_us=11,
    worker_us=12,
    swap_us=13,
)
STEP_OUTPUTS = StepOutputs(
    request_numbers=[1, 2],
    sequence_indices=[0, 3],
    token_ids=[3, 4],
    finished_request_numbers=[2, 5],
    finished_sequence_indices=[3, 0],
    finish_reasons=[FinishReason.STOP, FinishReason.ABORT],
    logprobs=LOGPROBS,
    hypotheses=[(6, [HYPOTHESIS])],
    prompt_logprobs=[(7, PROMPT_LOGPROBS)],
    time_breakdowns=[(2, TIME)],
)


def _common() -> list[Example]:
    params = common.sampling_params_to_proto, common.sampling_params_from_proto
    return [
        Example(PARAMS, *params),
        Example(BEAMS, *params),
        Example(MODEL, common.model_info_to_proto, common.model_info_from_proto),
        Example(STATE, common.cell_state_to_proto, common.cell_state_from_proto),
        Example(TIME, common.time_breakdown_to_proto, common.time_breakdown_from_proto),
        Example(LOGPROBS[0], common.token_logprobs_to_proto, common.token_logprobs_from_proto),
    ]


def _inference() -> list[Example]:
    generate = inference.generate_input_to_proto, inference.generate_input_from_proto
    event = inference.event_to_proto, inference.event_from_proto
    delta = Delta("text", (5, 6), tuple(LOGPROBS), 1, tuple(LOGPROBS))
    return [
        Example(GenerateInput("text", PARAMS, "mine", "demo", -3, "salt", True), *generate),
        Example(GenerateInput([5, 2**32 - 1], PARAMS), *generate),
        Example(
            TokenizeInput("text", "demo", False),
            inference.tokenize_input_to_proto,
            inference.tokenize_input_from_proto,
        ),
        Example(
            DetokenizeInput([5, 6], "demo", False),
            inference.detokenize_input_to_proto,
            inference.detokenize_input_from_proto,
        ),
        Example([MODEL], inference.models_to_proto, inference.models_from_proto),
        Example(
            [CellStatus("h:1", True, MODEL, STATE), CellStatus("h:2", False, None, CellState())],
            inference.cluster_to_proto,
            inference.cluster_from_proto,
        ),
        Example(Started("mine", 3, 2**64 - 1, "5f7a", "ac14"), *event),
        Example(delta, *event),
        Example(Finished(FinishReason.STOP, 5, "\n", 1, -0.5, TIME), *event),
        Example(Finished(FinishReason.ERROR, 5), *event),
    ]


def _scheduler() -> list[Example]:
    request = scheduler.session_request_to_proto, scheduler.session_request_from_proto
    event = scheduler.session_event_to_proto, scheduler.session_event_from_proto
    return [
        Example(SUBMISSION, *request),
        Example(Submission([5], SamplingParams()), *request),
        Example(Cancellation([1, 2**63], [(3, 1), (4, 0)]), *request),
        Example(Welcome(MODEL, STATE, (1, 2**64 - 1)), *event),
        Example(Queued(6, seed=2**64 - 1), *event),
        Example(Refused(1, OverloadedError("full", 250)), *event),
        Example(Refused(2, InvalidRequestError("prompt", "too long")), *event),
        Example(Refused(3, DrainingError("the cell is draining")), *event),
        Example(STEP_OUTPUTS, *event),
        Example(StepOutputs([1, 2], [0, 0], [3, 4], [2], [0], [FinishReason.STOP]), *event),
        Example(STATE, *event),
        Example(PrefixDigestDelta((1, 2**64 - 1), (3,)), *event),
        Example(
            Announcement(3, "host:50053", "1.2.3"),
            scheduler.announcement_to_proto,
            scheduler.announcement_from_proto,
        ),
    ]


LOAD_OPTIONS = LoadOptions(
    dtype="float16",
    load_format="dummy",
    kv_cache_dtype="int8",
    quantization="w8a8",
    draft_model="/models/draft",
    max_model_len=2**15,
    invariant=True,
)
CACHE_OPTIONS = CacheOptions(
    block_size=32,
    max_num_seqs=7,
    max_num_batched_tokens=2**20,
    enforce_eager=True,
    gpu_memory_utilization=0.3,
    kv_cache_gib=0.7,
    swap_space=1.5,
)


def _worker() -> list[Example]:
    spec = LoadSpec("/m", LOAD_OPTIONS, 1, 2)
    meeting = Meeting("host:1", "other", EPOCH, 1.5)
    response = worker.execute_response_to_proto, worker.execute_response_from_proto
    description = worker.description_to_proto, worker.description_from_proto
    return [
        Example(WorkerDescription("1", "cpu", "avx2", MODEL, 3, 2**40, EPOCH, "me"), *description),
        Example(WorkerDescription("1", "cpu", "avx2", None, 0, 0), *description),
        Example(
            LoadRequest(spec, "demo", meeting, "me"),
            worker.load_request_to_proto,
            worker.load_request_from_proto,
        ),
        Example(
            LoadResponse(MODEL, b"digest"),
            worker.load_response_to_proto,
            worker.load_response_from_proto,
        ),
        Example(
            CACHE_OPTIONS,
            partial(worker.profile_to_proto, EPOCH),
            worker.profile_from_proto,
        ),
        Example(
            CacheProfile(2**20, 2**33),
            worker.cache_profile_to_proto,
            worker.cache_profile_from_proto,
        ),
        Example(
            CacheSpec(2**20, CACHE_OPTIONS),
            partial(worker.cache_spec_to_proto, EPOCH),
            worker.cache_spec_from_proto,
        ),
        Example(
            CacheSpec(32, CacheOptions(swap_space=0.0)),
            partial(worker.cache_spec_to_proto, EPOCH),
            worker.cache_spec_from_proto,
        ),
        Example(HostCache(7, 1.5), worker.host_cache_to_proto, worker.host_cache_from_proto),
        Example(ORDERS, worker.execute_request_to_proto, worker.execute_request_from_proto),
        Example(RESULT, *response),
        Example(StepGap(4, 6), *response),
        Example(
            [MirroredSequence(5, 9, 8, (3, 1))], worker.mirror_to_proto, worker.mirror_from_proto
        ),
    ]


EXAMPLES = [*_common(), *_inference(), *_scheduler(), *_worker()]
