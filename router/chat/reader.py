"""What the outputs of a chat mean, read as they come: the same events through every front."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from quire.contract.chat import ChatInput, Tool
from quire.contract.outputs import FinishReason, ParsedOutput, ToolCallDelta
from router.chat.parsers.events import (
    ArgumentsDelta,
    ContentDelta,
    OutputParser,
    ParserEvent,
    ReasoningDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.parsers.forced_calls import ForcedCalls
from router.chat.parsers.formats import NONE, OutputFormat

# Of a prompt: they show whether it ends within reasoning.
_NUM_LAST_TOKENS = 32
_OF_CALLS = (ToolCallBegan, ArgumentsDelta, ToolCallEnded)


def with_special_tokens(chat: ChatInput, output: OutputFormat) -> ChatInput:
    """Return a chat whose outputs can be read: formats are written with special tokens."""
    output = output.of(chat)
    if output.reasoning == NONE and (output.tools == NONE or not _tools(chat)):
        return chat
    params = replace(chat.sampling_params, skip_special_tokens=False)
    return replace(chat, sampling_params=params)


class OutputReader:
    """Reads the outputs of a chat, each with a parser of its own.

    Args:
        output: the model's format.
        chat: that is answered, with the id of its request.
        token_text: returns what a token reads as on its own.
        eos_token_ids: of the model.
    """

    def __init__(
        self,
        output: OutputFormat,
        chat: ChatInput,
        token_text: Callable[[int], str],
        eos_token_ids: Collection[int],
    ) -> None:
        self._output = output.of(chat)
        self._chat = chat
        self._token_text = token_text
        params = chat.sampling_params
        has_eos = params.include_stop_str_in_output and not params.ignore_eos
        self._eos = frozenset(eos_token_ids if has_eos else ())
        self._prompt_end = ""
        self._parsers: dict[int, OutputParser | None] = {}
        self._calling: set[int] = set()
        self._broken: set[int] = set()
        self._last_tokens: dict[int, int] = {}

    def begin(self, prompt_token_ids: Sequence[int]) -> None:
        """Take the prompt, before anything is read: outputs may begin within its reasoning."""
        last = prompt_token_ids[-_NUM_LAST_TOKENS:]
        self._prompt_end = "".join(map(self._token_text, last))

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self._parser(0) is None

    def read(
        self,
        index: int,
        text: str,
        token_ids: Sequence[int] = (),
        end: FinishReason | None = None,
    ) -> list[ParserEvent]:
        """Return what the next text of an output means.

        Args:
            index: of the output.
            text: may be empty.
            token_ids: of that text.
            end: why the output ends with it; None where it goes on.
        """
        parser = self._parser(index)
        if parser is None:
            return [] if end is not None and not text else [ContentDelta(text)]
        events = parser.feed(self._without_eos(index, text, token_ids), token_ids)
        if end is not None:
            events += parser.finish(is_cut=end is not FinishReason.STOP)
        if self._chat.single_tool_call:
            events = [each for each in events if not isinstance(each, _OF_CALLS) or each.index == 0]
        for event in events:
            match event:
                case ToolCallBegan():
                    self._calling.add(index)
                case ToolCallEnded(is_whole=False):
                    self._broken.add(index)
        return events

    def has_called(self, index: int) -> bool:
        """Return whether an output has called tools so far, and none of its calls is broken.

        A client acts upon what it calls; a call that broke shows what the model wrote, and no JSON.
        """
        return index in self._calling and index not in self._broken

    def _parser(self, index: int) -> OutputParser | None:
        if index not in self._parsers:
            chat = self._chat
            parser = self._output.parser(chat.request_id, index, _tools(chat), self._prompt_end)
            if parser is not None and chat.forces_call:
                parser = ForcedCalls(parser)
            self._parsers[index] = parser
        return self._parsers[index]

    def _without_eos(self, index: int, text: str, token_ids: Sequence[int]) -> str:
        """Return a text without that of end-of-text ids: special tokens are for parsers."""
        if token_ids:
            self._last_tokens[index] = token_ids[-1]
        last = self._last_tokens.get(index)
        return text.removesuffix(self._token_text(last)) if last in self._eos else text


def parsed_output(events: Iterable[ParserEvent]) -> ParsedOutput:
    """Return what the events of an output mean together."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCallDelta] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallBegan(index, call_id, name):
                calls.append(ToolCallDelta(index, call_id, name))
                arguments.append([])
            case ArgumentsDelta(index, text):
                if not calls or calls[-1].index != index:
                    calls.append(ToolCallDelta(index))
                    arguments.append([])
                arguments[-1].append(text)
    return ParsedOutput(
        "".join(reasoning),
        "".join(content),
        tuple(
            replace(call, arguments="".join(texts))
            for call, texts in zip(calls, arguments, strict=True)
        ),
    )


def _tools(chat: ChatInput) -> Sequence[Tool]:
    return () if chat.tool_choice == "none" else chat.tools
