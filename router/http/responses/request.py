"""From the body of /v1/responses to a chat."""

from dataclasses import dataclass, field
from typing import Any

from quire.contract.chat import ChatInput
from quire.contract.openai_chat import parse_tool_choice, parse_tools
from quire.contract.sampling_params import MAX_LOGPROBS
from router.http.call import check_id
from router.http.fields import Fields
from router.http.responses.items import read_input
from router.http.resume import Resumption, read_created, read_seed
from router.http.sampling import check_served, read_sampling_params
from router.http.template_kwargs import read_template_kwargs
from router.http.tools import own_names_of_tools

LOGPROBS = "message.output_text.logprobs"
# What a response may be asked to show beside; of the others there is nothing here.
_INCLUDED = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
)
ID_PREFIX = "resp_"
MAX_METADATA = 16
# Fields that would change an answer, and are not obeyed here.
NOT_SERVED = {
    "previous_response_id": "no response is stored; send the whole conversation as input",
    "conversation": "no conversation is stored; send the whole of it as input",
    "prompt": "no prompt is stored",
    "n": "a response is one answer",
    "best_of": "a response is one answer",
    "prompt_logprobs": "only answers have log-probabilities here",
    "max_tool_calls": "no tool is called here",
}


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """What one body asks for.

    Attributes:
        chat: the request; `now` is when it was created.
        own: fields of the answer that repeat what was asked for.
        top_logprobs: how many of the most probable tokens to show for each; None for none.
        is_stream: answer with events.
        resumption: what the client says of its stream that broke; None for a new request.
        starting_after: number of the last event that was received of it; -1 for none.
    """

    chat: ChatInput
    own: dict[str, Any] = field(compare=False)
    top_logprobs: int | None
    is_stream: bool
    resumption: Resumption | None = None
    starting_after: int = -1


def read_request(body: Fields, request_id: str) -> ResponseRequest:
    """Return what a body asks for.

    Args:
        body: of the request.
        request_id: of its call.

    Raises:
        InvalidRequestError: a field is of another type, out of bounds, or not served here.
    """
    check_served(body)
    for name, why in NOT_SERVED.items():
        if name in body:
            raise body.refuse(name, f"must be absent: {why}")
    if body.boolean("use_beam_search"):
        raise body.refuse("use_beam_search", f"must be absent: {NOT_SERVED['n']}")
    if not body.boolean("include_reasoning", True):
        raise body.refuse("include_reasoning", "must be true: reasoning is an item of a response")
    if body.text("truncation", "disabled") != "disabled":
        raise body.refuse("truncation", "must be disabled: no message is left out here")
    is_stream, background = body.boolean("stream"), body.boolean("background")
    if background and not is_stream:
        raise body.refuse("background", "must come with stream: no response is stored")
    top_logprobs = _top_logprobs(body)
    body.own_names["logprobs"] = "top_logprobs"
    params = read_sampling_params(
        body,
        response_format="text.format",
        max_tokens=body.integer("max_output_tokens"),
        logprobs=top_logprobs,
        prompt_logprobs=None,
    )
    body.own_names |= {"prompt": "input", "messages": "input", **own_names_of_tools(body)}
    tool_choice, tool_choice_name = parse_tool_choice(body.value("tool_choice"))
    resume = body.fields("resume")
    resumption = None
    if resume.names():
        if not is_stream:
            raise body.refuse("resume", "must come with stream")
        request_id = resume.text("id").removeprefix(ID_PREFIX)
        if not request_id:
            raise resume.refuse("id", "must be that of the response, got none")
        check_id("resume.id", request_id)
        fingerprint = resume.text("system_fingerprint")
        resumption = Resumption(request_id, (), read_seed(resume), fingerprint)
    chat = ChatInput(
        read_input(body),
        params,
        parse_tools(body.value("tools"), is_flat=True),
        tool_choice,
        tool_choice_name,
        read_template_kwargs(body, body.fields("reasoning").text("effort")),
        # The time that a template asks for is part of its prompt: with `created_at` it is known.
        now=read_created(resume, "created_at"),
        request_id=request_id,
        model=body.text("model"),
        priority=body.integer("priority", 0) or 0,
        cache_salt=body.text("cache_salt"),
        resumable=background,
        single_tool_call=not body.boolean("parallel_tool_calls", True),
    )
    return ResponseRequest(
        chat=chat,
        own=_repeated(body, background),
        top_logprobs=top_logprobs,
        is_stream=is_stream,
        resumption=resumption,
        starting_after=_starting_after(resume),
    )


def _top_logprobs(body: Fields) -> int | None:
    included = body.texts("include")
    for place, name in enumerate(included):
        if name not in _INCLUDED:
            raise body.refuse(
                f"include[{place}]", f"must be one of {', '.join(_INCLUDED)}, got {name[:32]}"
            )
    number = body.integer("top_logprobs", 0) or 0
    if not 0 <= number <= MAX_LOGPROBS:
        raise body.refuse("top_logprobs", f"must be in [0, {MAX_LOGPROBS}], got {number}")
    return number if LOGPROBS in included else None


def _starting_after(resume: Fields) -> int:
    number = resume.integer("starting_after", -1)
    assert number is not None, "it has a default"
    if number < -1:
        raise resume.refuse("starting_after", f"must be at least 0, got {number}")
    return number


def _metadata(body: Fields) -> dict[str, str]:
    """Return what a client wants to find in its answer: OpenAI's limits."""
    fields = body.fields("metadata")
    names = fields.names()
    if len(names) > MAX_METADATA:
        raise body.refuse("metadata", f"must have at most {MAX_METADATA} members, got {len(names)}")
    found = {name: fields.text(name) for name in names}
    if any(len(name) > 64 or len(text) > 512 for name, text in found.items()):
        raise body.refuse(
            "metadata", "must have names of at most 64, texts of at most 512 characters"
        )
    return found


def _with_strict(tool: Any) -> Any:
    """Return a tool that says whether it is strict; those that do not are not."""
    return {"strict": False, **tool} if isinstance(tool, dict) else tool


def _repeated(body: Fields, background: bool) -> dict[str, Any]:
    tools = [_with_strict(each) for each in body.items("tools")]
    return {
        "background": background,
        "error": None,
        "frequency_penalty": body.number("frequency_penalty", 0.0),
        "incomplete_details": None,
        "instructions": body.value("instructions"),
        "max_output_tokens": body.integer("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": _metadata(body),
        "parallel_tool_calls": body.boolean("parallel_tool_calls", True),
        "presence_penalty": body.number("presence_penalty", 0.0),
        "previous_response_id": None,
        "prompt_cache_key": body.value("prompt_cache_key"),
        "reasoning": {"effort": body.fields("reasoning").value("effort"), "summary": None},
        "safety_identifier": body.value("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": body.number("temperature", 1.0),
        "text": {"format": body.fields("text").value("format") or {"type": "text"}},
        "tool_choice": body.value("tool_choice") or "auto",
        "tools": tools,
        "top_logprobs": body.integer("top_logprobs", 0) or 0,
        "top_p": body.number("top_p", 1.0),
        "truncation": "disabled",
        "user": body.value("user"),
    }
