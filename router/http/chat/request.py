"""From the body of /v1/chat/completions to a chat."""

from dataclasses import dataclass

from quire.contract.chat import ChatInput
from quire.contract.openai_chat import parse_messages, parse_tool_choice, parse_tools
from router.http.fields import Fields
from router.http.sampling import check_served, read_sampling_params
from router.http.template_kwargs import read_template_kwargs, read_thinking
from router.http.tools import own_names_of_tools

# Fields that would change an answer, and are not obeyed here.
NOT_SERVED = {
    "functions": "they are called tools now",
    "function_call": "it is called tool_choice now",
    "audio": "only text is served here",
    "web_search_options": "nothing is searched here",
    "chat_template": "only that of the router is rendered",
    "documents": "give them in a message",
    "echo": "only /v1/completions shows its prompt",
}


@dataclass(frozen=True, slots=True)
class ChatCompletionRequest:
    """What one body asks for.

    Attributes:
        chat: the request.
        top_logprobs: how many of the most probable tokens to show for each; None shows none, and no
            log-probability of the token either.
        prompt_logprobs: likewise of the prompt, in vLLM's field.
        is_stream: answer with events.
        include_usage: end a stream with the numbers of tokens.
        continuous_usage: show these numbers in each event.
        return_token_ids: show token ids beside text.
        tokens_as_ids: show tokens by their ids where their log-probabilities are.
        return_prompt_token_ids: and those of the prompt.
        shows_reasoning: whether reasoning is part of the answer.
    """

    chat: ChatInput
    top_logprobs: int | None
    prompt_logprobs: int | None
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
    return_prompt_token_ids: bool
    shows_reasoning: bool = True


def read_request(body: Fields) -> ChatCompletionRequest:
    """Return what a body asks for; its chat has no id yet.

    Raises:
        InvalidRequestError: a field is of another type, out of bounds, or not served here.
    """
    check_served(body)
    for name, why in NOT_SERVED.items():
        if name in body and body.value(name) is not False:
            raise body.refuse(name, f"must be absent: {why}")
    if any(kind != "text" for kind in body.texts("modalities")):
        raise body.refuse("modalities", "must be text alone")
    continues = body.boolean("continue_final_message")
    if continues and "add_generation_prompt" in body and body.boolean("add_generation_prompt"):
        raise body.refuse("add_generation_prompt", "must be false with continue_final_message")
    is_stream = body.boolean("stream")
    options = body.fields("stream_options")
    if options.names() and not is_stream:
        raise body.refuse("stream_options", "must be absent unless stream is true")
    prompt_logprobs = body.integer("prompt_logprobs")
    if prompt_logprobs is not None and is_stream:
        raise body.refuse("prompt_logprobs", "must be absent where stream is true")
    top_logprobs = _top_logprobs(body)
    max_tokens = body.integer("max_completion_tokens", body.integer("max_tokens"))
    body.own_names |= {"prompt": "messages", "logprobs": "top_logprobs"}
    body.own_names |= own_names_of_tools(body)
    if "max_completion_tokens" in body:
        body.own_names["max_tokens"] = "max_completion_tokens"
    params = read_sampling_params(
        body, max_tokens=max_tokens, logprobs=top_logprobs, prompt_logprobs=prompt_logprobs
    )
    tool_choice, tool_choice_name = parse_tool_choice(body.value("tool_choice"))
    chat = ChatInput(
        parse_messages(body.value("messages")),
        params,
        parse_tools(body.value("tools")),
        tool_choice,
        tool_choice_name,
        read_template_kwargs(body, body.text("reasoning_effort"), **read_thinking(body)),
        body.boolean("add_generation_prompt", True),
        continues,
        model=body.text("model"),
        priority=body.integer("priority", 0) or 0,
        cache_salt=body.text("cache_salt"),
        resumable=body.boolean("resumable"),
        single_tool_call=not body.boolean("parallel_tool_calls", True),
    )
    return ChatCompletionRequest(
        chat=chat,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        is_stream=is_stream,
        include_usage=options.boolean("include_usage"),
        continuous_usage=options.boolean("continuous_usage_stats"),
        return_token_ids=body.boolean("return_token_ids", is_stream),
        tokens_as_ids=body.boolean("return_tokens_as_token_ids"),
        return_prompt_token_ids=body.boolean("return_token_ids"),
        shows_reasoning=body.boolean("include_reasoning", True),
    )


def _top_logprobs(body: Fields) -> int | None:
    number = body.integer("top_logprobs")
    if body.boolean("logprobs"):
        return number or 0
    if number:
        raise body.refuse("top_logprobs", "must be absent unless logprobs is true")
    return None
