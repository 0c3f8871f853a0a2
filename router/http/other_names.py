"""What an endpoint says of fields that other endpoints know and that would change its answer: data.

Clients move from one API to another, and send the names of the one that they left. A name with a
dot is that of a member, where what a field asks for differs by it.
"""

from collections.abc import Mapping


def _called(own: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), f"it is called {own} here")


def _why(why: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


def _options(response_format: str, effort: str) -> dict[str, str]:
    """Return why members must be absent that say what an answer is and how it is thought of."""
    return {
        **_called(response_format, "text.format output_config.format output_format"),
        **_why(effort, "output_config.effort reasoning.effort"),
        **_why("only include_reasoning of chats leaves it out", "reasoning.exclude"),
        **_why("chat_template_kwargs says whether to think", "reasoning.enabled"),
        **_why("thinking has no limit of its own", "reasoning.max_tokens"),
    }


_TO_ALL = {
    **_why("only text is served here", "modalities audio image"),
    **_why("nothing is searched here", "web_search_options"),
    **_why("no tool is called here", "mcp_servers max_tool_calls"),
    **_why("no code is run here", "container"),
    **_why("no message is left out here", "truncation"),
    **_why("context is not shortened here", "context_management"),
    **_why("only /v1/completions puts text before something", "suffix"),
    **_why("only /v1/completions shows its prompt", "echo"),
    **_why("only /v1/responses can be left to run", "background"),
}
_TO_PROMPTS = {
    **_TO_ALL,
    **_called("prompt", "messages input text"),
    **_called("max_tokens", "max_completion_tokens max_output_tokens"),
    **_options("response_format", "prompts are texts here, as the model expects them"),
    **_called("response_format", "output_config"),
    **_called("stop", "stop_sequences"),
    **_why("logprobs is a number here", "top_logprobs"),
    **_why("put it in the prompt", "system instructions documents"),
    **_why(
        "send the whole text as prompt", "previous_response_id conversation previous_input_messages"
    ),
    **_why("only conversations have tools", "tools functions tool_choice function_call"),
    **_why(
        "prompts are texts here, as the model expects them",
        "reasoning reasoning_effort thinking thinking.type chat_template chat_template_kwargs "
        "continue_final_message",
    ),
    **_why("logprobs asks for them", "include"),
}
_BESIDE_MESSAGES = {
    **_why(
        "send the whole conversation as messages",
        "previous_response_id conversation previous_input_messages",
    ),
    **_called("messages", "input prompt prompt_token_ids text"),
}
OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "/v1/chat/completions": {
        **_TO_ALL,
        **_BESIDE_MESSAGES,
        **_called("max_completion_tokens", "max_output_tokens"),
        **_options("response_format", "it is called reasoning_effort here"),
        **_called("response_format", "output_config"),
        **_called("stop", "stop_sequences"),
        **_called("reasoning_effort", "reasoning"),
        **_why("give it in a message", "system instructions"),
        **_why("logprobs and top_logprobs ask for them", "include"),
    },
    "/v1/completions": {**_TO_PROMPTS, **_called("prompt", "prompt_token_ids")},
    "/generate": {**_TO_PROMPTS, **_why("its fields stand beside prompt", "sampling_params")},
    "/v1/responses": {
        **_TO_ALL,
        **_options("text.format", "it is called reasoning.effort here"),
        **_called("text.format", "response_format output_config"),
        **_called("max_output_tokens", "max_tokens max_completion_tokens"),
        **_called("input", "messages prompt_token_ids"),
        **_called("instructions", "system"),
        **_called("stop", "stop_sequences"),
        **_called("reasoning.effort", "reasoning_effort"),
        **_called("tools", "functions"),
        **_called("tool_choice", "function_call"),
        **_why("include and top_logprobs ask for them", "logprobs"),
        **_why(
            "chat_template_kwargs and reasoning say how to think here", "thinking thinking.type"
        ),
        **_called("background", "resumable"),
        **_why("events show token_ids, and nothing else does", "return_token_ids"),
        **_why("events show token_ids, and nothing else does", "return_tokens_as_token_ids"),
        **_why("give it in the input", "documents"),
        **_why("only that of the router is rendered", "chat_template"),
        **_why("the template writes special tokens out", "add_special_tokens"),
        **_why(
            "an answer begins a turn of its own", "continue_final_message add_generation_prompt"
        ),
    },
    "/v1/messages": {
        **_TO_ALL,
        **_BESIDE_MESSAGES,
        **_options("output_config.format", "it is called output_config.effort here"),
        **_called("output_config.format", "response_format"),
        **_called("max_tokens", "max_completion_tokens max_output_tokens"),
        **_called("system", "instructions"),
        **_called("output_config.effort", "reasoning_effort reasoning"),
        **_called("tools", "functions"),
        **_called("tool_choice", "function_call"),
        **_called("tool_choice.disable_parallel_tool_use", "parallel_tool_calls"),
        **_why("messages show no log-probabilities", "include"),
        **_why("give it in a message", "documents"),
        **_why("the template writes special tokens out", "add_special_tokens"),
        **_why(
            "a turn of the assistant at the end is continued",
            "continue_final_message add_generation_prompt",
        ),
        **_why("reasoning is a block of a message", "include_reasoning"),
    },
    "/v1/embeddings": {
        **_called("input", "prompt prompt_token_ids text_1 text_2 data_1 data_2 queries items"),
        **_called("input", "query documents"),
        **_why("only /rerank puts texts in order", "top_n return_documents"),
        **_why("put it in the input", "instruction"),
    },
}
"""Why such fields have to be absent, by the route and their names."""
NOTHING: Mapping[str, tuple[object, ...]] = {
    "response_format": ({"type": "text"},),
    "text.format": ({"type": "text"},),
    "output_config.format": ({"type": "text"},),
    "reasoning.exclude": (False,),
    "thinking.type": ("adaptive",),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
}
"""Values of such fields that change nothing."""
FORBIDS_CALLS: Mapping[str, tuple[object, ...]] = {"function_call": ("none",)}
"""Those that change something beside tools."""
ON_BY_DEFAULT = frozenset(
    ("add_generation_prompt", "parallel_tool_calls", "include_reasoning", "reasoning.enabled")
)
"""Those of which false changes something, and true does not."""
