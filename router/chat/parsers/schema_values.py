"""Which value a text is that stands for an argument without quotes: the schema's type decides."""

import ast
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from quire.contract.chat import Tool
from quire.json_schemas import INDEX
from router.chat.parsers.json_scan import JsonScanner

# Of a schema that is looked into for one argument: a client's may refer to itself.
_MAX_STEPS = 1000
_MAX_DEPTH = 32
_SECTIONS = ("$defs", "definitions")
# A value of each type but text.
_NO_TEXTS: tuple[Any, ...] = (None, True, 1, 1.5, [], {})
_MAX_PYTHON_CHARS = 4096
_ANY: dict[str, Any] = {}


class ToolSchema:
    """The schema of a tool's arguments, as far as it decides what a text means.

    That is by `type`, `enum`, `const`, `$ref` and what combines them. What cannot be read takes any
    value, and so does a schema of which too much would have to be read.

    Args:
        tool: None where it is not known.
    """

    def __init__(self, tool: Tool | None) -> None:
        self._root = _parsed(tool)
        self._num_left = _MAX_STEPS

    def is_text(self, name: str) -> bool:
        """Return whether an argument is a text, whatever is in it."""
        schema = self._argument(name)
        return self._takes(schema, "") and not any(self._takes(schema, each) for each in _NO_TEXTS)

    def value(self, name: str, text: str) -> str:
        """Return as JSON what a text is as an argument: the first of its readings that is allowed.

        These are the text as JSON, as Python writes it where not just anything is allowed, and the
        text itself.
        """
        schema = self._argument(name)
        stripped = text.strip()
        readings = [*_json(stripped)]
        if not self._takes_all(schema):
            readings += _python(stripped)
        readings += [(_dumped(each), each) for each in (text, stripped)]
        taken = (written for written, value in readings if self._takes(schema, value))
        return next(taken, readings[0][0])

    def is_json(self, name: str, text: str) -> bool:
        """Return whether a text in JSON is no text as it stands, which the schema may allow too."""
        schema = self._argument(name)
        return self._takes_all(schema) or any(
            not isinstance(value, str) and self._takes(schema, value)
            for _, value in _json(text.strip())
        )

    def _takes_all(self, schema: Any) -> bool:
        return all(self._takes(schema, each) for each in (*_NO_TEXTS, ""))

    def _argument(self, name: str) -> Any:
        """Return the schema of an argument, or one of anything."""
        self._num_left = _MAX_STEPS
        found = self._member(self._root, name, 0)
        return _ANY if found is None else found

    def _member(self, schema: Any, name: str, depth: int) -> Any:
        self._num_left -= 1
        if not isinstance(schema, Mapping) or self._num_left < 0 or depth > _MAX_DEPTH:
            return None
        found: list[Any] = []
        own = schema.get("properties")
        if isinstance(own, Mapping) and name in own:
            found.append(own[name])
        others = [self._target(schema["$ref"])] if "$ref" in schema else []
        for each in (*others, *_list(schema, "allOf")):
            found.append(self._member(each, name, depth + 1))
        for key in ("anyOf", "oneOf"):
            choices = [self._member(each, name, depth + 1) for each in _list(schema, key)]
            choices = [each for each in choices if each is not None]
            found.append({"anyOf": choices} if choices else None)
        found = [each for each in found if each is not None]
        if not found and isinstance(schema.get("additionalProperties"), Mapping):
            found.append(schema["additionalProperties"])
        return {"allOf": found} if found else None

    def _takes(self, schema: Any, value: Any) -> bool:
        self._num_left = _MAX_STEPS
        return self._allows(schema, value, 0)

    def _allows(self, schema: Any, value: Any, depth: int) -> bool:
        self._num_left -= 1
        if schema is False:
            return False
        if not isinstance(schema, Mapping) or self._num_left < 0 or depth > _MAX_DEPTH:
            return True
        if value is None and schema.get("nullable") is True:
            return True
        kinds = schema.get("type")
        names = kinds if isinstance(kinds, list) else [kinds]
        types = [_TYPES[each] for each in names if isinstance(each, str) and each in _TYPES]
        if types and not any(is_one(value) for is_one in types):
            return False
        if isinstance(schema.get("enum"), list) and not any(
            _is_same(each, value) for each in schema["enum"]
        ):
            return False
        if "const" in schema and not _is_same(schema["const"], value):
            return False
        if "$ref" in schema and not self._allows(self._target(schema["$ref"]), value, depth + 1):
            return False
        if not all(self._allows(each, value, depth + 1) for each in _list(schema, "allOf")):
            return False
        return all(
            any(self._allows(each, value, depth + 1) for each in choices)
            for choices in (_list(schema, "anyOf"), _list(schema, "oneOf"))
            if choices
        )

    def _target(self, reference: Any) -> Any:
        """Return what a `$ref` refers to within the schema; a schema of anything for nothing."""
        if not isinstance(reference, str):
            return _ANY
        base, _, fragment = reference.partition("#")
        named = [self._root, *self._named()]
        target = self._root
        if base:
            same = (each for each in named if _is_id(each.get("$id"), base))
            target = next(same, _ANY)
        if fragment and not fragment.startswith("/"):
            return next((each for each in named if each.get("$anchor") == fragment), _ANY)
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list):
                is_index = INDEX.fullmatch(key) and int(key) < len(target)
                target = target[int(key)] if is_index else _ANY
            else:
                target = target.get(key, _ANY) if isinstance(target, Mapping) else _ANY
        return target

    def _named(self) -> Iterator[Mapping[str, Any]]:
        for section in _SECTIONS:
            schemas = self._root.get(section)
            if isinstance(schemas, Mapping):
                yield from (each for each in schemas.values() if isinstance(each, Mapping))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == value // 1,
    "number": _is_number,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
}


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are one in JSON, where true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _is_id(found: Any, base: str) -> bool:
    return isinstance(found, str) and (found == base or found.endswith(f"/{base}"))


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _parsed(tool: Tool | None) -> Mapping[str, Any]:
    try:
        found = json.loads(tool.parameters) if tool and tool.parameters else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _dumped(value: Any) -> str:
    written: str = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return written


def _json(text: str) -> Iterator[tuple[str, Any]]:
    """Yield a text that is JSON, as it is and what it means; control characters are escaped."""
    scanner = JsonScanner()
    written, place = scanner.read(f"{text} ", 0)
    if place < len(text) or not scanner.is_done:
        return
    try:
        value = json.loads(written)
        _dumped(value)  # a number beyond those of Python
    except ValueError:
        return
    yield written, value


def _python(text: str) -> Iterator[tuple[str, Any]]:
    """Yield as JSON what a text is in Python: True, False, None, and lists and dicts of such."""
    if text not in ("True", "False", "None") and text[:1] not in ("[", "{"):
        return
    if len(text) > _MAX_PYTHON_CHARS:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            written = _dumped(ast.literal_eval(text))
        written.encode()  # half of a surrogate pair is no text
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return
    yield written, json.loads(written)
