"""What calls of a router are made of, with an event loop or without: options and metadata."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import grpc
from google.protobuf.message import Message

from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.embeddings import EmbedInput
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput, TokenizeInput
from quire.contract.openai_chat import parse_messages, parse_tool_choice, parse_tools
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams
from quire.observe.tracing import TRACEPARENT
from quire.rpc import Role, TlsFiles
from quire.rpc.call_errors import error_from_rpc
from quire.wire.embeddings import embed_input_to_proto
from quire.wire.inference import tokenize_input_to_proto

T = TypeVar("T")
M = TypeVar("M")
Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any] | ChatMessage]
"""In OpenAI's shape: each has a "role" and "content", a text."""


class GenerateOptions(TypedDict, total=False):
    """What a request may carry beside prompt and parameters.

    Attributes:
        request_id: unique among your running requests; "" has the router make one.
        model: "" for the only one that is served.
        priority: smaller goes first, in [-100, 100].
        cache_salt: share cached prefixes with requests of the same salt only.
        include_time_breakdown: have the answer say where its time went.
        include_prompt_token_ids: have Started bring the prompt's token ids.
        timeout: seconds for the whole answer; None for no limit.
        traceparent: your span, as W3C Trace Context; the spans of the request become part of it.
    """

    request_id: str
    model: str
    priority: int
    cache_salt: str
    include_time_breakdown: bool
    include_prompt_token_ids: bool
    timeout: float | None
    traceparent: str


class EmbedOptions(TypedDict, total=False):
    """What a request for vectors may carry beside its prompts.

    Attributes:
        normalize: scale each vector to a Euclidean length of 1; True if absent.
        dimensions: return so many elements of each vector, of a model with is_matryoshka.
        truncate_prompt_tokens: use only so many tokens of each prompt, its last ones; -1 for as
            many as the model takes.
        add_special_tokens: whether texts get the tokens that the model expects around a prompt;
            True if absent.
        request_id: unique among your running requests; "" has the router make one.
        model: "" for the only one that is served.
        priority: smaller goes first, in [-100, 100].
        cache_salt: share cached prefixes with requests of the same salt only.
        include_prompt_token_ids: return the token ids of each prompt.
        timeout: seconds for the whole answer; None for no limit.
        traceparent: your span, as W3C Trace Context; the spans of the request become part of it.
    """

    normalize: bool
    dimensions: int | None
    truncate_prompt_tokens: int | None
    add_special_tokens: bool
    request_id: str
    model: str
    priority: int
    cache_salt: str
    include_prompt_token_ids: bool
    timeout: float | None
    traceparent: str


class TemplateOptions(TypedDict, total=False):
    """What a chat may carry beside messages and parameters.

    Attributes:
        tools: that the assistant may call, in OpenAI's shape.
        tool_choice: "auto", "none", "required", or the tool that has to be called.
        parallel_tool_calls: an output may call several tools, and else one at most.
        chat_template_kwargs: variables for the template, such as enable_thinking.
        add_generation_prompt: end the prompt where the assistant begins to speak.
        continue_final_message: end it where the last message ends instead, to be continued.
        now: what a template that asks for the time is told, in seconds since the epoch.
        parse_output: read reasoning and tool calls out of the text, into `parsed` of events, and
            `content`, `reasoning` and `tool_calls` of completions.
    """

    tools: Sequence[Mapping[str, Any] | Tool] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool
    continue_final_message: bool
    now: int | None
    parse_output: bool


class ChatOptions(GenerateOptions, TemplateOptions, total=False):
    """What a chat may carry: the options of both."""


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what a failed call means, in the place of what the transport calls it."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None


def message_of(convert: Callable[[T], M], value: T) -> M:
    """Return what stands for a value on the wire.

    Raises:
        InvalidRequestError: a text in it is none: it has half of a surrogate pair.
    """
    try:
        return convert(value)
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InvalidRequestError("text", f"must be Unicode, got a surrogate, {half!r}") from None


def open_tls(tls_dir: str | Path | None) -> TlsFiles | None:
    """Return a client's certificates, from a directory or from that of QUIRE_TLS_DIR."""
    directory = tls_dir or os.environ.get("QUIRE_TLS_DIR")
    return TlsFiles(directory, Role.CLIENT) if directory else None


def generate_input(
    prompt: Prompt,
    sampling_params: SamplingParams | None,
    options: GenerateOptions,
    heartbeat_ms: int | None = None,
    resumable: bool = False,
) -> GenerateInput:
    """Return the request that a call of the SDK asks for."""
    return GenerateInput(
        prompt,
        sampling_params.clone() if sampling_params else SamplingParams(),
        options.get("request_id", ""),
        options.get("model", ""),
        options.get("priority", 0),
        options.get("cache_salt", ""),
        options.get("include_time_breakdown", False),
        options.get("include_prompt_token_ids", False),
        heartbeat_ms,
        resumable,
    )


def chat_input(
    messages: Messages,
    sampling_params: SamplingParams | None,
    options: ChatOptions,
    heartbeat_ms: int | None = None,
    resumable: bool = False,
) -> ChatInput:
    """Return the chat that a call of the SDK asks for.

    Raises:
        InvalidRequestError: a message or tool is in no shape that is known here.
    """
    tool_choice, tool_choice_name = parse_tool_choice(options.get("tool_choice"))
    kwargs = options.get("chat_template_kwargs")
    return ChatInput(
        parse_messages(messages),
        sampling_params.clone() if sampling_params else SamplingParams(),
        parse_tools(options.get("tools")),
        tool_choice,
        tool_choice_name,
        json.dumps(kwargs) if kwargs else "",
        options.get("add_generation_prompt", True),
        options.get("continue_final_message", False),
        options.get("now"),
        options.get("request_id", ""),
        options.get("model", ""),
        options.get("priority", 0),
        options.get("cache_salt", ""),
        options.get("include_time_breakdown", False),
        heartbeat_ms,
        resumable,
        options.get("parse_output", False),
        not options.get("parallel_tool_calls", True),
    )


def embed_message(prompts: Prompt | Sequence[Prompt], options: EmbedOptions) -> Message:
    """Return the request for vectors that a call of the SDK asks for.

    Args:
        prompts: one, or a sequence of several.
        options: of the call.

    Raises:
        InvalidRequestError: there are no prompts, or too many, or a value is out of bounds.
    """
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    each: Any = [prompts] if is_one else prompts
    asked = EmbedInput(
        each,
        PoolingParams(options.get("normalize", True), options.get("dimensions")),
        options.get("request_id", ""),
        options.get("model", ""),
        options.get("truncate_prompt_tokens"),
        options.get("add_special_tokens", True),
        options.get("priority", 0),
        options.get("cache_salt", ""),
        options.get("include_prompt_token_ids", False),
    )
    return message_of(embed_input_to_proto, asked)


def tokenize_message(text: str, model: str, add_special_tokens: bool) -> Message:
    """Return the request for the token ids of a text.

    Raises:
        InvalidRequestError: it is no text: it has half of a surrogate pair.
    """
    return message_of(tokenize_input_to_proto, TokenizeInput(text, model, add_special_tokens))


def trace_metadata(options: GenerateOptions | EmbedOptions) -> tuple[tuple[str, str], ...]:
    """Return the metadata that makes a request part of the caller's trace."""
    traceparent = options.get("traceparent")
    return ((TRACEPARENT, traceparent),) if traceparent else ()
