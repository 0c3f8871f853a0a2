"""Grammars in llguidance's terms: what router and worker must read in the same way.

llguidance is imported where it is wanted: the SDK does without it.
"""

import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from quire import finite_json
from quire.contract.errors import InvalidRequestError, ModelLoadError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.json_schemas import readable

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from tokenizers import Tokenizer as Backend

# Between the parts of a JSON value: a line break and an indent. Without a limit, a model that has
# begun with blanks may never stop. A schema's own "x-guidance" takes the place of these.
_JSON_OPTIONS = {"whitespace_pattern": r"\r?\n?[ \t]{0,40}"}
_BETWEEN_SLASHES = {"/": r"\/", "\n": r"\n"}
# Text that has to come is not tokenized ahead: that would make tokens of their own, added to the
# vocabulary, of a text that reads as one of them, which the grammar then refuses or which end it.
_NOT_FORCED = '%llguidance {"no_forcing": true}'
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
# The name of a terminal in Lark, or a literal, which may hold what looks like one.
_LARK_NAME = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])*/|\b([A-Z][A-Z0-9_]*)\b')
_QUOTED_LINE = re.compile(r"\s*(\d+ \||\^$)")
_MAX_ERROR_CHARS = 200
# What a grammar may cost, in llguidance's units, the same on every machine: its defaults, less of
# what is spent on each token and of what is kept.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}


def grammar_version() -> str:
    """Return the version of what obeys grammars; "" where it is not installed."""
    try:
        return version("llguidance")
    except PackageNotFoundError:
        return ""


def open_vocabulary(
    backend: "Backend", vocab_size: int, eos_token_ids: Sequence[int]
) -> "LLTokenizer":
    """Return the texts of a model's tokens, as grammars need them.

    Takes about a second for 10^5 tokens.

    Args:
        backend: the tokenizer.
        vocab_size: of the model; ids that the tokenizer has no token for never come.
        eos_token_ids: end-of-text ids of the model, at least one.

    Raises:
        ModelLoadError: llguidance cannot read such a tokenizer.
    """
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

    plain = Tokenizer.from_str(backend.to_str())
    plain.no_truncation()
    plain.no_padding()
    num_tokens = 1 + max(plain.get_vocab(with_added_tokens=True).values(), default=-1)
    try:
        return LLTokenizer(
            plain.to_str(), n_vocab=max(vocab_size, num_tokens), eos_token=eos_token_ids[0]
        )
    except Exception as error:  # of several kinds, which its interface does not name
        raise ModelLoadError(f"no grammars with this tokenizer: {_in_one_line(error)}") from error


def open_matcher(vocabulary: "LLTokenizer", params: StructuredOutputsParams) -> "LLMatcher":
    """Return the state of a grammar before the first token. Other threads run meanwhile.

    How long it takes has no bound, nor has the memory: only for a grammar that the router has
    opened within its limits, or in a process that can be ended.

    Raises:
        InvalidRequestError: it is no grammar, or one that is beyond the limits; names the field.
    """
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(
        vocabulary, _as_grammar(params), log_level=0, limits=LLParserLimits(**_LIMITS)
    )
    if matcher.is_error():
        raise _invalid(params, matcher.get_error())
    return matcher


def why_failed(matcher: "LLMatcher") -> str:
    """Return in one line why a state is an error; "" if it is none."""
    return _in_one_line(matcher.get_error()) if matcher.is_error() else ""


def with_json_options(schema: Any) -> Any:
    """Return a JSON schema as llguidance reads it, with the options of every one.

    Raises:
        RecursionError: it is nested too deeply.
    """
    return {"x-guidance": _JSON_OPTIONS, **readable(schema)} if isinstance(schema, dict) else schema


def lark_regex(regex: str) -> str:
    """Return the expression of Lark that derives what a regex matches."""
    return f"/{_without_delimiters(regex)}/"


def regex_of(text: str) -> str:
    """Return the regex of a text."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"
        for character in text
    )


def as_lark(params: StructuredOutputsParams) -> str | None:
    """Return the expression of Lark that derives the same texts; None for a grammar of rules.

    Raises:
        InvalidRequestError: the schema is no JSON, or the regex ends within an escape.
    """
    if params.regex is not None:
        num_backslashes = len(params.regex) - len(params.regex.rstrip("\\"))
        if num_backslashes % 2:  # which llguidance leaves out
            raise _invalid(params, "a backslash at its end")
        return lark_regex(params.regex)
    if params.choice:
        return lark_regex("|".join(map(regex_of, params.choice)))
    if params.grammar is not None or params.structural_tag is not None:
        return None
    return f"%json {json.dumps(_schema(params))}"


def _without_delimiters(regex: str) -> str:
    """Return a regex of the same meaning that can stand between slashes."""
    return re.sub(r"\\.|/|\n", lambda found: _BETWEEN_SLASHES.get(found[0], found[0]), regex)


def _as_grammar(params: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher

    expression = as_lark(params)
    grammar = _lark_of(params) if expression is None else f"start: {expression}"
    return LLMatcher.grammar_from_lark(f"{grammar}\n{_NOT_FORCED}\n")


def _lark_of(params: StructuredOutputsParams) -> str:
    """Return a grammar in Lark; llama.cpp's notation has `::=` for each rule."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    assert params.grammar is not None, "the only one left"
    if not _GBNF_RULE.search(params.grammar):
        return params.grammar
    try:
        made = gbnf_to_lark(params.grammar)
    except Exception as error:  # of no kind that its interface names
        raise _invalid(params, str(error)) from None
    # As terminals, which it makes of rules that hold no others, they would take all that they can,
    # what has to follow too.
    return _LARK_NAME.sub(
        lambda found: f"terminal_{found[1].lower()}" if found[1] else found[0], made
    )


def _schema(params: StructuredOutputsParams) -> Any:
    if params.json_object:
        return with_json_options({"type": "object"})
    assert isinstance(params.json, str), "the only one left"
    try:
        return with_json_options(finite_json.loads(params.json))
    except RecursionError:
        raise _invalid(params, "one that is nested too deeply") from None
    except ValueError as error:
        raise _invalid(params, str(error)) from None


def _invalid(params: StructuredOutputsParams, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        params.field, f"must be a grammar that llguidance takes, got: {_in_one_line(reason)}"
    )


def _in_one_line(error: object) -> str:
    """Return what an error says, without the state and the lines of the grammar that may follow."""
    said = str(error).partition("<state>")[0].removesuffix("<non-verbose/>")
    reason = " ".join(
        each for line in said.splitlines() if not _QUOTED_LINE.match(line) for each in line.split()
    )
    return reason[:_MAX_ERROR_CHARS] or type(error).__name__
