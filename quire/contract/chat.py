"""A conversation to be continued, as clients send it: messages, tools, and how to render them."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput, ResumeInput
from quire.contract.sampling_params import SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams

TOOL_CHOICES = ("auto", "none", "required")
# Of a request, tool calls in all its messages: checked before anything is made of them.
MAX_MESSAGES = 4096
MAX_TOOL_CALLS = 4096
MAX_TOOLS = 1024


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the assistant has decided on.

    Attributes:
        name: of the tool.
        arguments: a JSON object, as text.
        id: that the tool's answer refers to; "" for none.
    """

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the assistant may call.

    Attributes:
        name: that calls it.
        description: for the model; "" for none.
        parameters: JSON schema of the arguments, as text; "" for none.
        is_strict: calls of it have arguments of that schema, and no others.
    """

    name: str
    description: str = ""
    parameters: str = ""
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """What one side has said.

    Attributes:
        role: "system", "user", "assistant", "tool", or another that the template knows.
        content: text; None for none, as in a message that only calls tools.
        name: of who speaks; "" for none.
        tool_calls: that an assistant has made.
        tool_call_id: the call that a tool's message answers; "" for none.
        reasoning: what an assistant thought before it answered; "" for nothing.
    """

    role: str
    content: str | None = None
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A conversation to continue: what the model's chat template makes of it is the prompt.

    Attributes:
        messages: in their order.
        sampling_params: within their own bounds.
        tools: that the assistant may call.
        tool_choice: one of TOOL_CHOICES.
        tool_choice_name: the tool that has to be called; "" leaves it to `tool_choice`.
        chat_template_kwargs: a JSON object, as text: variables for the template; "" for none.
        add_generation_prompt: end the prompt where the assistant begins to speak.
        continue_final_message: end it where the last message ends instead, to be continued.
        now: what a template that asks for the time is told, in seconds since the epoch; None for
            the time that it is.
        parse_output: read reasoning and tool calls out of the text.
        single_tool_call: an output calls one tool at most.
        request_id, model, priority, cache_salt, include_time_breakdown, heartbeat_ms, resumable: as
            of GenerateInput.
    """

    messages: Sequence[ChatMessage]
    sampling_params: SamplingParams
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    tool_choice_name: str = ""
    chat_template_kwargs: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    now: int | None = None
    request_id: str = ""
    model: str = ""
    priority: int = 0
    cache_salt: str = ""
    include_time_breakdown: bool = False
    heartbeat_ms: int | None = None
    resumable: bool = False
    parse_output: bool = False
    single_tool_call: bool = False

    @property
    def forces_call(self) -> bool:
        """Whether an answer that calls no tool is none."""
        return bool(self.tool_choice_name) or self.tool_choice == "required"

    def generate_input(
        self, prompt: str | Sequence[int], grammar: StructuredOutputsParams | None = None
    ) -> GenerateInput:
        """Return the request that this one is once its prompt is known.

        Its start reports the prompt's token ids and the grammar: they, and not the conversation,
        are what a client sends to have it resumed, since a template may look at the clock.

        Args:
            prompt: the rendered conversation, or its token ids.
            grammar: that of the output; None for that of the sampling parameters.
        """
        # One that GenerateInput gets and this class lacks fails here, in every test of a chat.
        names = {field.name for field in fields(GenerateInput)}
        names -= {"prompt", "include_prompt_token_ids", "pooling_params"}
        own = {name: getattr(self, name) for name in names}
        if grammar is not None:
            own["sampling_params"] = replace(self.sampling_params, structured_outputs=grammar)
        return GenerateInput(prompt, include_prompt_token_ids=True, **own)


@dataclass(frozen=True, slots=True)
class ResumeChatInput(ResumeInput):
    """A chat with parse_output whose stream broke.

    Attributes:
        chat: as it was sent; its messages may be left out.
    """

    _: KW_ONLY
    chat: ChatInput


def check_numbers(num_messages: int, num_tool_calls: int, num_tools: int) -> None:
    """Check how much there is to be read of a chat.

    Raises:
        InvalidRequestError: it is too much.
    """
    for field, number, limit in (
        ("messages", num_messages, MAX_MESSAGES),
        ("tool_calls", num_tool_calls, MAX_TOOL_CALLS),
        ("tools", num_tools, MAX_TOOLS),
    ):
        if number > limit:
            raise InvalidRequestError(field, f"must be at most {limit}, got {number}")
