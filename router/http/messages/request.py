"""From the body of /v1/messages to a chat."""

from dataclasses import dataclass, replace

from quire.contract.chat import ChatInput
from quire.contract.sampling_params import MAX_ITEMS
from router.http.fields import Fields
from router.http.messages.blocks import read_messages, read_tool_choice, read_tools
from router.http.sampling import check_served, read_sampling_params
from router.http.template_kwargs import read_template_kwargs, read_thinking

# Fields that would change an answer, and are not obeyed here.
NOT_SERVED = {
    "n": "a message is one answer",
    "best_of": "a message is one answer",
    "use_beam_search": "a message is one answer",
    "logprobs": "messages show no log-probabilities",
    "top_logprobs": "messages show no log-probabilities",
    "prompt_logprobs": "messages show no log-probabilities",
    "container": "no code is run here",
    "mcp_servers": "no tool is called here",
    "output_format": "it is called output_config.format now",
    "chat_template": "only that of the router is rendered",
}


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """What one body asks for.

    Attributes:
        chat: the request.
        is_stream: answer with events.
        return_token_ids: show token ids beside text.
        return_prompt_token_ids: and those of the prompt.
    """

    chat: ChatInput
    is_stream: bool
    return_token_ids: bool
    return_prompt_token_ids: bool


def read_request(body: Fields) -> MessageRequest:
    """Return what a body asks for; its chat has no id yet.

    Raises:
        InvalidRequestError: a field is of another type, out of bounds, or not served here.
    """
    if "max_tokens" not in body:
        raise body.refuse("max_tokens", "must be given, got none")
    is_stream = body.boolean("stream")
    return MessageRequest(
        chat=read_chat(body),
        is_stream=is_stream,
        return_token_ids=body.boolean("return_token_ids", is_stream),
        return_prompt_token_ids=body.boolean("return_token_ids"),
    )


def read_chat(body: Fields) -> ChatInput:
    """Return the conversation of a body, with or without the tokens that it may be answered with.

    Raises:
        InvalidRequestError: as `read_request`.
    """
    check_served(body)
    for name, why in NOT_SERVED.items():
        if name in body and body.value(name) is not False:
            raise body.refuse(name, f"must be absent: {why}")
    params = read_sampling_params(
        body,
        response_format="output_config.format",
        max_tokens=body.integer("max_tokens"),
        logprobs=None,
        prompt_logprobs=None,
    )
    stop = body.texts("stop_sequences", MAX_ITEMS["stop"])
    body.own_names |= {"stop": "stop_sequences", "prompt": "messages"}
    params = replace(params, stop=(*params.stop, *filter(None, stop)))
    if not body.items("messages"):
        raise body.refuse("messages", "must be an array of at least 1 message, got none")
    messages = read_messages(body)
    last = messages[-1] if messages else None
    # A turn of the assistant at the end is one to be continued.
    continues = last is not None and last.role == "assistant"
    if last is not None and continues and (last.tool_calls or not last.content):
        raise body.refuse(
            "messages", "must end with the user's turn, or with the text of one to be continued"
        )
    tool_choice, tool_choice_name = read_tool_choice(body)
    effort = body.fields("output_config").text("effort")
    return ChatInput(
        messages,
        params,
        read_tools(body),
        tool_choice,
        tool_choice_name,
        read_template_kwargs(body, effort, **read_thinking(body)),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        model=body.text("model"),
        priority=body.integer("priority", 0) or 0,
        cache_salt=body.text("cache_salt"),
        resumable=body.boolean("resumable"),
        single_tool_call=body.fields("tool_choice").boolean("disable_parallel_tool_use"),
    )
