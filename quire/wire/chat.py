"""To and from the messages of a chat, in inference.proto."""

from quire.contract.chat import ChatInput, ChatMessage, Tool, ToolCall, check_numbers
from quire.contract.outputs import ParsedOutput, ToolCallDelta
from quire.v1 import inference_pb2
from quire.wire.common import sampling_params_from_proto, sampling_params_to_proto
from quire.wire.fields import fields_of, from_fields


def chat_input_to_proto(chat: ChatInput) -> inference_pb2.ChatRequest:
    """Return the message of a chat."""
    fields = fields_of(chat)
    fields["messages"] = map(_message_to_proto, chat.messages)
    fields["tools"] = [inference_pb2.Tool(**fields_of(tool)) for tool in chat.tools]
    fields["sampling_params"] = sampling_params_to_proto(chat.sampling_params)
    return inference_pb2.ChatRequest(**fields)


def chat_input_from_proto(message: inference_pb2.ChatRequest) -> ChatInput:
    """Return the chat of a message.

    Raises:
        InvalidRequestError: it has too many messages, calls or tools, or a sampling parameter is
            out of bounds.
    """
    check_numbers(len(message.messages), 0, len(message.tools))
    check_numbers(0, sum(len(each.tool_calls) for each in message.messages), 0)
    return from_fields(
        ChatInput,
        message,
        messages=tuple(map(_message_from_proto, message.messages)),
        tools=tuple(from_fields(Tool, tool) for tool in message.tools),
        sampling_params=sampling_params_from_proto(message.sampling_params),
        now=message.now if message.HasField("now") else None,
        heartbeat_ms=message.heartbeat_ms if message.HasField("heartbeat_ms") else None,
    )


def parsed_output_to_proto(parsed: ParsedOutput) -> inference_pb2.ParsedOutput:
    """Return the message of what the text of an output means."""
    calls = [inference_pb2.ToolCallDelta(**fields_of(call)) for call in parsed.tool_calls]
    return inference_pb2.ParsedOutput(
        reasoning=parsed.reasoning, content=parsed.content, tool_calls=calls
    )


def parsed_output_from_proto(message: inference_pb2.ParsedOutput) -> ParsedOutput:
    """Return what the text of an output means."""
    calls = tuple(from_fields(ToolCallDelta, call) for call in message.tool_calls)
    return ParsedOutput(message.reasoning, message.content, calls)


def _message_to_proto(message: ChatMessage) -> inference_pb2.ChatMessage:
    fields = fields_of(message)
    fields["tool_calls"] = [
        inference_pb2.ToolCall(**fields_of(call)) for call in message.tool_calls
    ]
    return inference_pb2.ChatMessage(**fields)


def _message_from_proto(message: inference_pb2.ChatMessage) -> ChatMessage:
    return from_fields(
        ChatMessage,
        message,
        content=message.content if message.HasField("content") else None,
        tool_calls=tuple(from_fields(ToolCall, call) for call in message.tool_calls),
    )
