"""Structural tags: text in which some parts, each behind a mark, have a grammar of their own.

Both spellings that vLLM's clients send: `structures` and `triggers`, and the `format` tree of
https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html.
"""

from collections.abc import Callable, Mapping
from typing import Any

from quire import finite_json
from quire.contract.errors import InvalidRequestError
from quire.grammar import lark_regex
from router.chat.parsers.lark import TEXT, Rules

STRUCTURAL_TAG = "structured_outputs.structural_tag"
MAX_DEPTH = 16
_TAGS = ("tags", "at_least_one", "stop_after_first")
# What each part may say beside its type.
_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "any_text": (),
    "const_string": ("value",),
    "json_schema": ("json_schema",),
    "or": ("elements",),
    "regex": ("pattern",),
    "sequence": ("elements",),
    "tag": ("begin", "content", "end"),
    "tags_with_separator": (*_TAGS, "separator"),
    "triggered_tags": (*_TAGS, "triggers"),
}
_DEFAULTS = {"style": "json"}
_SWITCHES = _TAGS[1:]


def structural_tag_grammar(text: str, added_tokens: Mapping[str, int]) -> str:
    """Return the grammar of outputs with structural tags, in llguidance's Lark.

    Args:
        text: JSON of the tags.
        added_tokens: ids of the tokenizer's added tokens, special or not, by their text.

    Raises:
        InvalidRequestError: they are malformed, or have a part that is not obeyed here.
    """
    try:
        spec = finite_json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong("", "must be JSON") from None
    builder = _Builder(Rules(added_tokens))
    start = builder.of_format(_as_format(spec), "format", 0)
    return "\n".join((f"start: {start}", *builder.rules.lines()))


def _as_format(spec: Any) -> Any:
    """Return the tree that tags are, whichever way they are spelled."""
    if not isinstance(spec, dict):
        raise _wrong("", "must be an object")
    if "format" in spec:
        return spec["format"]
    structures, triggers = spec.get("structures"), spec.get("triggers")
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise _wrong("structures", "must be an array of objects")
    tags = [
        {
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema")},
            "end": each.get("end"),
        }
        for each in structures
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _Builder:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._kinds: dict[str, Callable[[dict[str, Any], str, int], str]] = {
            "any_text": lambda *_: rules.terminal(TEXT),
            "const_string": lambda part, path, _: rules.mark(_text(part, path, "value")),
            "json_schema": self._schema,
            "or": self._either,
            "regex": lambda part, path, _: lark_regex(_text(part, path, "pattern")),
            "sequence": self._sequence,
            "tag": self._tag,
            "tags_with_separator": self._separated,
            "triggered_tags": self._triggered,
        }

    def of_format(self, part: Any, path: str, depth: int) -> str:
        """Return the expression of a part of the tree."""
        if depth > MAX_DEPTH:
            raise _wrong(path, f"must be nested at most {MAX_DEPTH} deep")
        kind = part.get("type", "tag") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise _wrong(f"{path}.type", f"must be one of {known}, got {str(kind)[:32]!r}")
        _check_members(part, kind, path)
        return self._kinds[kind](part, path, depth)

    def _schema(self, part: dict[str, Any], path: str, _: int) -> str:
        schema = part.get("json_schema")
        if isinstance(schema, str):
            try:
                schema = finite_json.loads(schema)
            except (ValueError, RecursionError):
                schema = None
        if not isinstance(schema, dict | bool):
            raise _wrong(f"{path}.json_schema", "must be a JSON schema")
        try:
            return self.rules.json(schema)
        except RecursionError:
            raise _wrong(f"{path}.json_schema", "must be nested less deeply") from None
        except InvalidRequestError as error:  # all schemas together are too long
            raise _wrong(f"{path}.json_schema", error.description) from None

    def _sequence(self, part: dict[str, Any], path: str, depth: int) -> str:
        found = self._elements(part, path, depth)
        for place, each in enumerate(part["elements"][:-1]):
            _check_end(each, f"{path}.elements[{place}]")
        return f"({' '.join(found)})"

    def _either(self, part: dict[str, Any], path: str, depth: int) -> str:
        return f"({' | '.join(self._elements(part, path, depth))})"

    def _elements(self, part: dict[str, Any], path: str, depth: int) -> list[str]:
        elements = _items(part, path, "elements")
        return [
            self.of_format(each, f"{path}.elements[{place}]", depth + 1)
            for place, each in enumerate(elements)
        ]

    def _tag(self, part: dict[str, Any], path: str, depth: int) -> str:
        begin = _text(part, path, "begin")
        return self.rules.rule(f"{self.rules.mark(begin)} {self._behind(part, path, depth)}")

    def _behind(self, tag: dict[str, Any], path: str, depth: int) -> str:
        """Return what derives a tag behind its beginning."""
        end, content = _text(tag, path, "end", may_be_empty=True), tag.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            return self.rules.text_until(end)
        inner = self.of_format(content, f"{path}.content", depth + 1)
        if not end:
            return inner
        _check_end(content, f"{path}.content")
        return f"{inner} {self.rules.mark(end)}"

    def _tags(self, part: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
        """Return the tags of a part, and where each stands."""
        tags = [(tag, f"{path}.tags[{at}]") for at, tag in enumerate(_items(part, path, "tags"))]
        for tag, where in tags:
            if not isinstance(tag, dict):
                raise _wrong(where, "must be an object")
            _check_members(tag, "tag", where)
        return tags

    def _triggered(self, part: dict[str, Any], path: str, depth: int) -> str:
        triggers = _items(part, path, "triggers")
        if not all(isinstance(each, str) and each for each in triggers):
            raise _wrong(f"{path}.triggers", "must be an array of strings that are not empty")
        free, found = self.rules.text_without(*triggers), []
        for tag, where in self._tags(part, path):
            begin = _text(tag, where, "begin")
            if not any(begin.startswith(each) for each in triggers):
                raise _wrong(f"{where}.begin", "must begin with one of the triggers")
            # Text and beginning together: of two terminals the first would take all that it can.
            found.append(f"{self.rules.ended(free, begin)} {self._behind(tag, where, depth + 1)}")
        one = self.rules.rule(" | ".join(found))
        if part.get("stop_after_first"):
            return one if part.get("at_least_one") else f"({one} | {free})"
        return f"{one}{'+' if part.get('at_least_one') else '*'} {free}"

    def _separated(self, part: dict[str, Any], path: str, depth: int) -> str:
        separator = _text(part, path, "separator", may_be_empty=True)
        tags = [self._tag(tag, where, depth + 1) for tag, where in self._tags(part, path)]
        one = self.rules.rule(" | ".join(tags))
        for place, each in enumerate([] if part.get("stop_after_first") else part["tags"]):
            _check_end(each, f"{path}.tags[{place}]")
        between = f"{self.rules.mark(separator)} " if separator else ""
        several = one if part.get("stop_after_first") else f"{one} ({between}{one})*"
        return f"({several})" if part.get("at_least_one") else f"({several})?"


def _check_members(part: Mapping[str, Any], kind: str, path: str) -> None:
    """Check that a part says nothing that is not obeyed here.

    Raises:
        InvalidRequestError: it does; names the member.
    """
    for name, value in part.items():
        if name in _SWITCHES and not isinstance(value, bool | None):
            raise _wrong(f"{path}.{name}", "must be true or false")
        is_known = name == "type" or name in _MEMBERS[kind]
        if not is_known and value not in (None, [], _DEFAULTS.get(name)):
            raise _wrong(f"{path}.{name[:32]}", "must be absent: it is not obeyed here")


def _is_open(part: Any) -> bool:
    """Return whether a part, which is well-formed, may end with text that nothing ends."""
    match part.get("type", "tag"):
        case "any_text" | "triggered_tags":
            return True
        case "sequence":
            return _is_open(part["elements"][-1])
        case "or":
            return any(map(_is_open, part["elements"]))
        case "tag":
            return not part["end"] and _is_open(part["content"])
        case "tags_with_separator":
            return any(map(_is_open, part["tags"]))
    return False


def _check_end(part: Any, path: str) -> None:
    """Check that a part has an end: free text would take all that comes behind it.

    Raises:
        InvalidRequestError: it has none.
    """
    if _is_open(part):
        raise _wrong(path, "must come last, or be the content of a tag with an end: it is any text")


def _items(part: dict[str, Any], path: str, name: str) -> list[Any]:
    items = part.get(name)
    if not isinstance(items, list) or not items:
        raise _wrong(f"{path}.{name}", "must be an array of at least 1 item")
    return items


def _text(part: dict[str, Any], path: str, name: str, may_be_empty: bool = False) -> str:
    text = part.get(name)
    if not isinstance(text, str) or not (text or may_be_empty):
        raise _wrong(f"{path}.{name}", "must be a string")
    return text


def _wrong(path: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{STRUCTURAL_TAG}.{path}" if path else STRUCTURAL_TAG, problem)
