"""A domain object for each message of the protos, with which it is sent and read."""

from dataclasses import replace

from quire.contract.chat import ChatInput, ChatMessage, ResumeChatInput, Tool, ToolCall
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
from quire.contract.versions import UNVERSIONED
from quire.wire import (
    chat,
    common,
    inference,
    resizing,
    scheduler,
)
from tests.unit.quire.wire_example import Example
from tests.unit.quire.wire_values import (
    BEAMS,
    LOGPROBS,
    MODEL,
    PARAMS,
    STATE,
    STEP_OUTPUTS,
    STRUCTURED,
    SUBMISSION,
    TIME,
)
from tests.unit.quire.wire_vectors import vector_examples
from tests.unit.quire.wire_workers import worker_examples


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
    *worker_examples(),
    *_resizing(),
    *vector_examples(),
]
