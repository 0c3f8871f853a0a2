"""A domain object for each message of the protos, with which it is sent and read."""

from dataclasses import replace
from functools import partial

from quire.contract.block_shipping import (
    BlockLayout,
    BlockOrder,
    BlockPiece,
    ImportOrder,
    ImportResult,
)
from quire.contract.chat import ChatInput, ChatMessage, ResumeChatInput, Tool, ToolCall
from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.errors import (
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    OverloadedError,
    QuarantinedError,
    QuotaExceededError,
    TooLargeError,
    UnreachableDeadlineError,
)
from quire.contract.inputs import (
    DetokenizeInput,
    GenerateInput,
    ReceivedOutput,
    ResumeInput,
    TokenizeInput,
)
from quire.contract.outputs import (
    CellState,
    CellStatus,
    Delta,
    Finished,
    FinishReason,
    ParsedOutput,
    Started,
    ToolCallDelta,
)
from quire.contract.recording import EpochHeader, Record
from quire.contract.resizing import ResizePhase, ResizeProgress
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import (
    Announcement,
    BlockSource,
    Cancellation,
    Heartbeat,
    PrefixDigestDelta,
    Queued,
    Refused,
    StepOutputs,
    Submission,
    Suspected,
    Welcome,
)
from quire.contract.steps import (
    MirroredSequence,
    StepGap,
)
from quire.contract.versions import UNVERSIONED
from quire.contract.workers import (
    CachedBlock,
    CacheProfile,
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
    RunningStep,
    WorkerDescription,
    WorkerMirror,
)
from quire.wire import (
    block_shipping,
    caches,
    chat,
    common,
    inference,
    mirror,
    recording,
    resizing,
    scheduler,
    worker,
)
from tests.unit.quire.wire_example import Example
from tests.unit.quire.wire_values import (
    BEAMS,
    EPOCH,
    LOGPROBS,
    MODEL,
    ORDERS,
    PARAMS,
    RESULT,
    STATE,
    STEP_OUTPUTS,
    STRUCTURED,
    SUBMISSION,
    TIME,
)
from tests.unit.quire.wire_vectors import vector_examples


def _common() -> list[Example]:
    params = common.sampling_params_to_proto, common.sampling_params_from_proto
    return [
        Example(PARAMS, *params),
        Example(BEAMS, *params),
        *(Example(each, *params) for each in STRUCTURED),
        Example(MODEL, common.model_info_to_proto, common.model_info_from_proto),
        Example(STATE, common.cell_state_to_proto, common.cell_state_from_proto),
        Example(TIME, common.time_breakdown_to_proto, common.time_breakdown_from_proto),
        Example(LOGPROBS[0], common.token_logprobs_to_proto, common.token_logprobs_from_proto),
    ]


def _inference() -> list[Example]:
    generate = inference.generate_input_to_proto, inference.generate_input_from_proto
    resume = inference.resume_input_to_proto, inference.resume_input_from_proto
    event = inference.event_to_proto, inference.event_from_proto
    delta = Delta("text", (5, 6), tuple(LOGPROBS), 1, tuple(LOGPROBS))
    calls = (ToolCallDelta(0, arguments="}"), ToolCallDelta(1, "c1", "f", "{"))
    parsed = ParsedOutput("why", "so", calls)
    chat_input = ChatInput((), PARAMS, (Tool("f"),), "none", request_id="mine", parse_output=True)
    return [
        Example(
            GenerateInput("text", PARAMS, "mine", "demo", -3, "salt", True, True, 300, True),
            *generate,
        ),
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
        Example(
            ResumeInput(
                GenerateInput([5], PARAMS, "mine"),
                2**64 - 1,
                "5f7a",
                "ac14",
                (ReceivedOutput(0, (5, 6), 7, False, -0.5), ReceivedOutput(1, ended=True)),
                3,
            ),
            *resume,
        ),
        Example(ResumeInput(GenerateInput([5], PARAMS), None), *resume),
        Example(ResumeChatInput(GenerateInput([5], PARAMS, "mine"), 7, chat=chat_input), *resume),
        Example(Started("mine", 3, 2**64 - 1, "5f7a", "ac14", (5, 6, 7), 9, 8), *event),
        Example(Started("mine", 3, 5, structured_outputs=STRUCTURED[2].structured_outputs), *event),
        Example(Started("mine", 3, 5, sampling_defaults={"top_p": 0.5, "top_k": 20}), *event),
        Example(
            Started(
                *("mine", 3, 5),
                sampling_defaults={
                    **{"temperature": 0.5, "min_p": 0.25, "repetition_penalty": 1.5},
                    "max_tokens": 7,
                },
            ),
            *event,
        ),
        Example(delta, *event),
        Example(Finished(FinishReason.STOP, 5, "\n", 1, -0.5, TIME), *event),
        Example(Finished(FinishReason.ERROR, 5, num_cached_tokens=3), *event),
        Example(replace(delta, parsed=parsed), *event),
        Example(Finished(FinishReason.STOP, 5, parsed=replace(parsed, tool_calls=())), *event),
        Example(True, lambda _: inference.heartbeat_to_proto(), inference.is_heartbeat),
    ]


def _chat() -> list[Example]:
    functions = chat.chat_input_to_proto, chat.chat_input_from_proto
    messages = (
        ChatMessage("user", "", "me"),
        ChatMessage("assistant", None, "", (ToolCall("f", "{}", "c1"),), "", "why"),
        ChatMessage("tool", "3", tool_call_id="c1"),
    )
    full = ChatInput(
        messages=messages,
        sampling_params=PARAMS,
        tools=(Tool("f", "does it", '{"type": "object"}', True), Tool("g")),
        tool_choice="required",
        tool_choice_name="f",
        chat_template_kwargs='{"a": 1}',
        add_generation_prompt=False,
        continue_final_message=True,
        now=2**40,
        request_id="mine",
        model="demo",
        priority=-3,
        cache_salt="salt",
        include_time_breakdown=True,
        heartbeat_ms=300,
        resumable=True,
        parse_output=True,
        single_tool_call=True,
    )
    return [
        Example(full, *functions),
        Example(ChatInput((ChatMessage("user", "Hi"),), PARAMS), *functions),
    ]


def _scheduler() -> list[Example]:
    request = scheduler.session_request_to_proto, scheduler.session_request_from_proto
    event = scheduler.session_event_to_proto, scheduler.session_event_from_proto
    return [
        Example(SUBMISSION, *request),
        Example(Submission([5], SamplingParams()), *request),
        Example(Heartbeat(), *request),
        Example(Heartbeat(), *event),
        Example(Cancellation([1, 2**63], [(3, 1), (4, 0)]), *request),
        Example(Welcome(MODEL, STATE, (1, 2**64 - 1), 8), *event),
        Example(Welcome(MODEL, STATE, (), UNVERSIONED), *event),
        Example(Queued(6, seed=2**64 - 1), *event),
        Example(Refused(1, OverloadedError("full", 250)), *event),
        Example(Refused(2, InvalidRequestError("prompt", "too long")), *event),
        Example(Refused(6, TooLargeError("max_tokens", "must be at most 3, got 4")), *event),
        Example(Refused(3, DrainingError("the cell is draining")), *event),
        Example(Refused(4, DeadlineExceededError("late")), *event),
        Example(Refused(5, UnreachableDeadlineError("later", 9)), *event),
        Example(Refused(5, QuotaExceededError("concurrent: too many", 9)), *event),
        Example(Refused(7, QuarantinedError("twice")), *event),
        Example(Suspected(7, 12, 1), *event),
        Example(BlockSource(("host:1", "host:2")), *event),
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
    meeting = Meeting("host:1", "other", EPOCH, 1.5, bytes(range(32)))
    response = worker.execute_response_to_proto, worker.execute_response_from_proto
    description = worker.description_to_proto, worker.description_from_proto
    return [
        Example(
            WorkerDescription("1", "cuda:0", "sm_90", MODEL, 3, 2**40, EPOCH, "me", 8, "H200"),
            *description,
        ),
        Example(
            WorkerDescription("1", "cpu", "avx2", None, 0, 0, 0, "", UNVERSIONED), *description
        ),
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
            partial(caches.profile_to_proto, EPOCH, num_at_host=3),
            caches.profile_from_proto,
        ),
        Example(
            CacheProfile(2**20, 2**33),
            caches.cache_profile_to_proto,
            caches.cache_profile_from_proto,
        ),
        Example(
            RunningStep(2**40, 2_100, True, 300_000),
            worker.running_step_to_proto,
            worker.running_step_from_proto,
        ),
        Example(
            CacheSpec(2**20, CACHE_OPTIONS, keeps_contents=True),
            partial(caches.cache_spec_to_proto, EPOCH),
            caches.cache_spec_from_proto,
        ),
        Example(
            CacheSpec(32, CacheOptions(swap_space=0.0)),
            partial(caches.cache_spec_to_proto, EPOCH),
            caches.cache_spec_from_proto,
        ),
        Example(HostCache(7, 1.5, 2**40), caches.host_cache_to_proto, caches.host_cache_from_proto),
        Example(ORDERS, worker.execute_request_to_proto, worker.execute_request_from_proto),
        Example(RESULT, *response),
        Example(StepGap(4, 6), *response),
        Example(
            WorkerMirror(
                (MirroredSequence(5, 9, 8, (3, 1), 2),),
                7,
                CacheSpec(2**20, CACHE_OPTIONS),
                (CachedBlock(3, 1, bytes(range(32))), CachedBlock(1, 2, bytes(32))),
                (CachedBlock(0, 1, bytes(range(32))),),
            ),
            mirror.mirror_to_proto,
            mirror.mirror_from_proto,
        ),
        Example(WorkerMirror(), mirror.mirror_to_proto, mirror.mirror_from_proto),
        *_block_shipping(),
    ]


def _block_shipping() -> list[Example]:
    blocks = CachedBlock(3, 1, bytes(range(32))), CachedBlock(1, 2, bytes(32))
    return [
        Example(
            ImportOrder("host:1", blocks, 2_000),
            partial(block_shipping.import_order_to_proto, EPOCH),
            block_shipping.import_order_from_proto,
        ),
        Example(
            ImportResult(3, 2**40, "late"),
            block_shipping.import_result_to_proto,
            block_shipping.import_result_from_proto,
        ),
        Example(
            BlockOrder(BlockLayout("5f7a", 16, 1, 2), (bytes(range(32)), bytes(32))),
            block_shipping.block_order_to_proto,
            block_shipping.block_order_from_proto,
        ),
        Example(
            BlockPiece(b"contents", b"checksum"),
            block_shipping.block_piece_to_proto,
            block_shipping.block_piece_from_proto,
        ),
    ]


def _recording() -> list[Example]:
    record = recording.record_to_proto, recording.record_from_proto
    header = EpochHeader(
        "1.2.3",
        2**60,
        3,
        True,
        LoadRequest(LoadSpec("/m", LOAD_OPTIONS, 0, 2), "demo", Meeting(epoch=EPOCH), "me"),
        LoadResponse(MODEL, b"digest"),
        CacheSpec(2**20, CACHE_OPTIONS, keeps_contents=True),
        HostCache(7, 1.5, 2**40),
        EPOCH - 1,
        9,
    )
    return [
        Example(Record(2**50, 2, header), *record),
        Example(Record(1, 0, ORDERS), *record),
        Example(Record(1, 0, RESULT), *record),
    ]


def _resizing() -> list[Example]:
    progress = ResizeProgress(ResizePhase.DONE, num_moved=3, gap_s=0.25)
    return [
        Example(progress, resizing.resize_progress_to_proto, resizing.resize_progress_from_proto)
    ]


EXAMPLES = [
    *_common(),
    *_inference(),
    *_chat(),
    *_scheduler(),
    *_worker(),
    *_recording(),
    *_resizing(),
    *vector_examples(),
]
