"""Which formats there are, by the names that vLLM gives them, and which of them a model writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.contract.chat import ChatInput, Tool
from quire.contract.errors import ConfigError
from router.chat.parsers.deepseek import DeepSeekCalls
from router.chat.parsers.events import CallIds, OutputParser
from router.chat.parsers.harmony import HarmonyParser
from router.chat.parsers.json_calls import HermesCalls, Llama3Calls, MistralCalls
from router.chat.parsers.reasoning import ReasoningParser, ReasoningTags
from router.chat.parsers.tagged import GlmCalls, QwenCoderCalls

AUTO = "auto"
NONE = "none"
HARMONY = "openai"
HARMONY_REASONING = "openai_gptoss"

TOOL_CALL_PARSERS: Mapping[str, Callable[[CallIds, Sequence[Tool]], OutputParser]] = {
    "hermes": lambda ids, tools: HermesCalls(ids),
    "qwen3_coder": QwenCoderCalls,
    "llama3_json": Llama3Calls,
    "mistral": lambda ids, tools: MistralCalls(ids),
    "deepseek_v3": lambda ids, tools: DeepSeekCalls(ids),
    "deepseek_v31": lambda ids, tools: DeepSeekCalls(ids),
    "glm45": GlmCalls,
    HARMONY: lambda ids, tools: HarmonyParser(ids),
}
_THINK = ("<think>", "</think>")
REASONING_PARSERS: Mapping[str, ReasoningTags | None] = {
    "deepseek_r1": ReasoningTags(*_THINK, is_implied=True),
    "qwen3": ReasoningTags(*_THINK),
    "glm45": ReasoningTags(*_THINK),
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    # Its channels are no tags; one parser reads all of it.
    HARMONY_REASONING: None,
}

# Texts that a chat template has all of, most telling first, and the format that this means.
_TOOLS_OF_TEMPLATE = (
    (("<|channel|>", "<|message|>"), HARMONY),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("<arg_key>",), "glm45"),
    (("<function=",), "qwen3_coder"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>",), "hermes"),
    (("<|python_tag|>",), "llama3_json"),
    (("<|start_header_id|>", '"parameters"'), "llama3_json"),
)
_REASONING_OF_TEMPLATE = (
    (("<|channel|>", "<|message|>"), HARMONY_REASONING),
    (("[THINK]",), "mistral"),
    (("<arg_key>", "</think>"), "glm45"),
    (("<｜Assistant｜>", "</think>"), "deepseek_r1"),
    (("</think>",), "qwen3"),
)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What a model writes.

    Attributes:
        tools: one of TOOL_CALL_PARSERS; NONE leaves calls as they are.
        reasoning: one of REASONING_PARSERS; NONE leaves reasoning as it is.
    """

    tools: str = NONE
    reasoning: str = NONE

    def of(self, chat: ChatInput) -> "OutputFormat":
        """Return the format of a chat's outputs: a forced call has one, Hermes's if need be."""
        if chat.forces_call and self.tools == NONE:
            return replace(self, tools="hermes")
        return self

    def begins_within_reasoning(self, prompt_end: str) -> bool:
        """Return whether outputs do that.

        Args:
            prompt_end: the last characters of the prompt, special tokens written out.
        """
        tags = None if self.reasoning == NONE else REASONING_PARSERS[self.reasoning]
        return tags is not None and tags.is_open(prompt_end)

    def parser(
        self, request_id: str, output: int, tools: Sequence[Tool] = (), prompt_end: str = ""
    ) -> OutputParser | None:
        """Return what reads one output; None where its text is all there is.

        Args:
            request_id: of the request.
            output: index of the output.
            tools: that may be called; none leaves calls as they are.
            prompt_end: the last characters of the prompt, special tokens written out.
        """
        ids = CallIds(request_id, output, is_short=self.tools == "mistral")
        calls = None
        if self.reasoning == HARMONY_REASONING or (tools and self.tools == HARMONY):
            return HarmonyParser(ids)
        if tools and self.tools != NONE:
            calls = TOOL_CALL_PARSERS[self.tools](ids, tools)
        if self.reasoning == NONE:
            return calls
        tags = REASONING_PARSERS[self.reasoning]
        assert tags is not None, "all but harmony have tags"
        return ReasoningParser(tags, tags.is_open(prompt_end), calls)


def choose_format(tools: str, reasoning: str, templates: Sequence[str]) -> OutputFormat:
    """Return the format of a model.

    Args:
        tools: one of TOOL_CALL_PARSERS, NONE, or AUTO, which looks at the templates.
        reasoning: likewise of REASONING_PARSERS.
        templates: texts of the model's chat templates.

    Raises:
        ConfigError: there is no parser of that name.
    """
    text = "\n".join(templates)
    return OutputFormat(
        _chosen("tool_call_parser", tools, TOOL_CALL_PARSERS, _TOOLS_OF_TEMPLATE, text),
        _chosen("reasoning_parser", reasoning, REASONING_PARSERS, _REASONING_OF_TEMPLATE, text),
    )


def _chosen(
    field: str,
    name: str,
    names: Mapping[str, object],
    table: Sequence[tuple[Sequence[str], str]],
    text: str,
) -> str:
    if name == AUTO:
        return next((found for parts, found in table if all(each in text for each in parts)), NONE)
    if name != NONE and name not in names:
        raise ConfigError(f"{field}: must be one of {', '.join((AUTO, NONE, *names))}, got {name}")
    return name
