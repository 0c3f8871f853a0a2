"""Outputs drawn at random from a grammar, and what a parser makes of them."""

from collections.abc import Sequence
from random import Random

from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.contract.chat import Tool
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher, open_vocabulary, why_failed
from router.chat.parsers import deepseek, harmony
from router.chat.parsers.events import ArgumentsDelta, ContentDelta, ToolCallBegan
from router.chat.parsers.formats import OutputFormat

MAX_TOKENS = 3000
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = (
    *("[TOOL_CALLS]", "[ARGS]", harmony.CHANNEL, harmony.MESSAGE, harmony.START, "<|constrain|>"),
    *(deepseek.CALLS_BEGIN, deepseek.CALLS_END, deepseek.CALL_BEGIN, deepseek.CALL_END),
    *(deepseek.SEPARATOR, *harmony.ENDS, "</s>"),
)
# Added, but not special, in tokenizers of Qwen and GLM.
MARKS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)


class Walks:
    """Draws outputs of grammars.

    Args:
        has_marks: the tokenizer has tokens for the marks of formats.
    """

    def __init__(self, has_marks: bool) -> None:
        backend = Tokenizer(models.BPE({byte: place for place, byte in enumerate(BYTES)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(list(SPECIAL))
        if has_marks:
            backend.add_tokens([AddedToken(each, normalized=False) for each in MARKS])
        self.backend = backend
        self.eos = backend.token_to_id("</s>")
        self.added = {
            each.content: place for place, each in backend.get_added_tokens_decoder().items()
        }
        size = backend.get_vocab_size()
        self.vocabulary: LLTokenizer = open_vocabulary(backend, size, (self.eos,))
        self._ends = [backend.encode(each).ids for each in ("\n</parameter>\n", "</arg_value>\n")]
        self._digits = {backend.token_to_id(each) for each in "0123456789"}
        self._exponents = {backend.token_to_id(each) for each in "eE"}
        self._weights = [self._weight(place) for place in range(size)]

    def _weight(self, place: int) -> float:
        """Prefer letters and what ends things, so that outputs end."""
        text = self.backend.decode([place], skip_special_tokens=False)
        if place == self.eos or text in '"}],\n':
            return 30.0
        if text in "@.:-":
            return 3.0
        return 1.0 if text.isascii() and (text.isalnum() or text in self.added) else 0.02

    def draw(self, grammar: str, draw: Random) -> str | None:
        """Return an output that the grammar lets end, None where it has not by MAX_TOKENS."""
        matcher = open_matcher(self.vocabulary, StructuredOutputsParams(grammar=grammar))
        taken: list[int] = []
        while len(taken) < MAX_TOKENS and not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            assert not why_failed(matcher), why_failed(matcher)
            allowed = [
                each for each in range(len(self._weights)) if mask[each // 8] >> each % 8 & 1
            ]
            token = draw.choices(allowed, [self._weights[each] for each in allowed])[0]
            if token == self.eos:
                return self.backend.decode(taken, skip_special_tokens=False)
            end = self._ends[draw.randrange(len(self._ends))]
            some = [token]
            if draw.random() < 0.1 and matcher.validate_tokens(end) == len(end):
                some = end
            elif token in self._exponents and taken and taken[-1] in self._digits:
                continue  # a number that no double has
            taken += some
            assert matcher.consume_tokens(some)
        if not matcher.is_stopped():
            return None
        return self.backend.decode(taken, skip_special_tokens=False).removesuffix("</s>")

    def takes(self, grammar: str, text: str) -> bool:
        """Whether a text, whose marks are tokens where there are such, is one of the grammar's."""
        matcher = open_matcher(self.vocabulary, StructuredOutputsParams(grammar=grammar))
        ids = self.backend.encode(text).ids
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def read(
    output: OutputFormat, tools: Sequence[Tool], text: str, prompt_end: str = ""
) -> tuple[list[str], list[str], str]:
    """Return names and arguments of the calls that a parser reads, and what is content."""
    parser = output.parser("request", 0, tools, prompt_end)
    assert parser is not None
    events = parser.feed(text) + parser.finish()
    names = [each.name for each in events if isinstance(each, ToolCallBegan)]
    arguments = [""] * len(names)
    for each in events:
        if isinstance(each, ArgumentsDelta):
            arguments[each.index] += each.text
    return names, arguments, "".join(each.text for each in events if isinstance(each, ContentDelta))
