"""JSON schemas as llguidance reads them, and moved away from the root of their document."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote, urljoin

# What llguidance obeys of "format"; all else that may stand there is an annotation (JSON Schema
# 2020-12, validation, 7.2.3), which it refuses.
FORMATS = frozenset(
    (
        *("date", "date-time", "time", "duration", "email", "hostname"),
        *("ipv4", "ipv6", "uuid", "uri", "unknown"),
    )
)
_BASE = "json-schema:///moved"
# Members that hold values, and those that hold schemas by names that mean nothing.
_VALUES = frozenset(("const", "enum", "default", "example", "examples", "required", "x-guidance"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_SAYING_NOTHING_OF_TEXT = frozenset(("type", "title", "description", "default", "examples"))
_DEFINITIONS = ("$defs", "definitions")
_URI_CHARACTERS = "!#$%&'()*+,/:;=?@~"
# As a JSON pointer has it (RFC 6901), of a list that a document can hold.
INDEX = re.compile("0|[1-9][0-9]{0,8}")


def readable(schema: Any) -> Any:
    """Return a schema of the same meaning that llguidance reads, as it does not read every one.

    A format that it does not know is left out, as is `uniqueItems: false`, characters of references
    that no URI has are escaped, names of members that have to be some texts or match a pattern are
    written as patterns, and the member that a `discriminator` names is required in each of its
    schemas.

    Args:
        schema: the root of a document.

    Raises:
        RecursionError: it is nested too deeply.
    """

    def read(part: Any) -> Any:
        if not isinstance(part, dict):
            return [read(each) for each in part] if isinstance(part, list) else part
        found = _with_inner(part, read)
        if isinstance(name := found.get("format"), str) and name not in FORMATS:
            del found["format"]
        if found.get("uniqueItems") is False:  # the default
            del found["uniqueItems"]
        if isinstance(reference := found.get("$ref"), str):
            found["$ref"] = quote(reference, safe=_URI_CHARACTERS)
        return _with_discriminator(_with_names_as_pattern(found, schema))

    return read(schema)


def moved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that may stand within another one: its references are to itself, as before.

    Args:
        schema: the root of a document, of any draft.
    """
    # References are made absolute, since llguidance takes those behind one that is for the outer
    # document's.
    own = {name: schema[name] for name in schema if name not in ("$schema", "$id")}
    return {"$id": _base(schema), **_made_absolute(own, _base(schema))}


def cut_out(schema: dict[str, Any], part: Any) -> Any:
    """Return a part of a schema as a document of its own, with what its references need.

    Args:
        schema: the root of a document.
        part: a schema in it, or made of such.
    """
    if not (isinstance(part, dict) and _references(part)):
        return part
    made = _made_absolute(part, _base(schema))
    root = moved(_with_needed_definitions(schema, part))
    return {**made, "$defs": {**made.get("$defs", {}), _BASE: root}}


def resolve(schema: dict[str, Any], reference: str) -> Any:
    """Return the schema that a reference is to, None where it is not to one within the document.

    Args:
        schema: the root of a document.
        reference: an anchor or a JSON pointer behind "#", behind the root's own "$id" or the "$id"
            of an inner schema; characters may be escaped as URIs have it.
    """
    name, _, fragment = reference.partition("#")
    found: Any = schema
    if name and _joined(_base(schema), name) != _base(schema):
        found = _found(schema, "$id", name)
    fragment = unquote(fragment)
    if fragment and not fragment.startswith("/"):
        return _found(found, "$anchor", fragment)
    for step in fragment.split("/")[1:]:
        name = _unescaped(step)
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and INDEX.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _unescaped(step: str) -> str:
    """Return a step of a JSON pointer (RFC 6901)."""
    return step.replace("~1", "/").replace("~0", "~")


def _base(schema: dict[str, Any]) -> str:
    """Return what references of a document are relative to."""
    own = schema.get("$id")
    base = own.partition("#")[0] if isinstance(own, str) else ""
    return base or _BASE


def _joined(base: str, reference: str) -> str:
    """Return a reference made absolute, or as it is where one of the two is no URI."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _with_discriminator(schema: dict[str, Any]) -> dict[str, Any]:
    """Require the member that OpenAPI's `discriminator` names in each of its schemas."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    branches = schema.get("oneOf")
    if not isinstance(name, str) or not isinstance(branches, list):
        return schema
    return {**schema, "oneOf": [_with_required(each, name) for each in branches]}


def _with_required(schema: Any, name: str) -> Any:
    """Return a schema that requires a member; one that is none stays, for llguidance to refuse."""
    required = schema.get("required", []) if isinstance(schema, dict) else None
    return {**schema, "required": [*required, name]} if isinstance(required, list) else schema


def _with_names_as_pattern(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Write `propertyNames` as the pattern of the only members, where nothing else is said."""
    names = schema.get("propertyNames")
    if "properties" in schema or "patternProperties" in schema or not isinstance(names, dict):
        return schema
    if isinstance(reference := names.get("$ref"), str) and reference.startswith("#/"):
        target = resolve(root, reference)
        if isinstance(target, dict):
            names = {**{name: names[name] for name in names if name != "$ref"}, **target}
    said = names.keys() - _SAYING_NOTHING_OF_TEXT
    texts = names.get("enum", [names.get("const")])
    if said in ({"enum"}, {"const"}) and isinstance(texts, list):
        pattern = f"^({'|'.join(re.escape(each) for each in texts if isinstance(each, str))})$"
    elif said == {"pattern"} and isinstance(names["pattern"], str):
        pattern = names["pattern"]
    elif said and said <= {"minLength", "maxLength"}:
        pattern = f"^.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    else:
        return schema
    made = {name: value for name, value in schema.items() if name != "propertyNames"}
    only = {pattern: schema.get("additionalProperties", True)}
    return {**made, "patternProperties": only, "additionalProperties": False}


def _with_needed_definitions(schema: dict[str, Any], part: Any) -> dict[str, Any]:
    """Leave out what a part refers to nowhere, where its references show that."""
    kept: dict[str, dict[str, Any]] = {}
    waiting = _references(part)
    while waiting:
        steps = waiting.pop().split("/")
        definitions = schema.get(steps[1]) if len(steps) > 2 else None
        key = _unescaped(unquote(steps[2])) if len(steps) > 2 else ""
        if (
            steps[0] != "#"
            or len(steps) < 3
            or steps[1] not in _DEFINITIONS
            or not isinstance(definitions, dict)
            or key not in definitions
        ):
            return schema
        if key not in kept.setdefault(steps[1], {}):
            kept[steps[1]][key] = definitions[key]
            waiting += _references(definitions[key])
    return {**{name: schema[name] for name in ("$id",) if name in schema}, **kept}


def _references(part: Any) -> list[str]:
    """Return all references, and "" for an "$id" or an anchor, which others may be relative to."""
    found: list[str] = []

    def visit(each: Any) -> None:
        if isinstance(each, list):
            for item in each:
                visit(item)
        elif isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                found.append(each["$ref"])
            if isinstance(each.get("$id"), str) or isinstance(each.get("$anchor"), str):
                found.append("")
            _with_inner(each, visit)

    visit(part)
    return found


def _made_absolute(part: Any, base: str) -> Any:
    """Return a part whose references hold in another document; those below an "$id" do."""
    if isinstance(part, list):
        return [_made_absolute(each, base) for each in part]
    if not isinstance(part, dict) or isinstance(part.get("$id"), str):
        return part
    made = _with_inner(part, lambda each: _made_absolute(each, base))
    if isinstance(reference := made.get("$ref"), str):
        is_own = reference.startswith("#")
        made["$ref"] = f"{base}{reference}" if is_own else _joined(base, reference)
    return made


def _with_inner(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a schema with its members changed, but for those that hold no schemas.

    Args:
        schema: any.
        change: takes a schema, a list of them, or what a member holds that means nothing here.
    """
    made = {}
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            made[name] = {key: change(each) for key, each in value.items()}
        else:
            made[name] = value if name in _VALUES else change(value)
    return made


def _found(schema: Any, name: str, value: str) -> Any:
    """Return the schema in another one that has such a member, None for none."""
    if isinstance(schema, list):
        inner = schema
    elif isinstance(schema, dict):
        if schema.get(name) == value:
            return schema
        inner = list(schema.values())
    else:
        return None
    return next((hit for each in inner if (hit := _found(each, name, value)) is not None), None)
