"""The grammar of an answer in a JSON body, in the words of OpenAI, vLLM, llama.cpp and SGLang."""

from typing import Any

from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import MAX_CHOICES, StructuredOutputsParams
from router.http.fields import Fields

_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
# Fields of a body in which llama.cpp and SGLang ask for such, and what they ask for.
_OTHERS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
# Those that would change an answer, and are not obeyed here.
_NOT_SERVED = {
    "guided_whitespace_pattern": "a schema's x-guidance says what stands between its parts",
    "grammar_lazy": "a grammar holds from the first token on",
    "grammar_triggers": "a grammar holds from the first token on",
    "format": "it is called response_format here",
}
# Of a format, what only some types of it have, and what others call it.
_CONSTRAINTS = (
    *("schema", "json_schema", "regex", "pattern", "ebnf", "grammar", "choice", "value"),
    *("structural_tag", "structures", "triggers"),
)
# Of vLLM's, what means nothing here where it is false.
_SWITCHES = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")

# A grammar, and what its client calls it.
_Asked = tuple[str, StructuredOutputsParams]


def read_structured_outputs(body: Fields, response_format: str) -> StructuredOutputsParams | None:
    """Return what a body's answers must be; None for any text.

    Args:
        body: of the request.
        response_format: OpenAI's field for it, fields within others joined by dots.

    Raises:
        InvalidRequestError: a field is of another type, several ask for something, one asks for
            what is not served, or there is no such grammar.
    """
    for name, why in _NOT_SERVED.items():
        if name in body and body.value(name) is not False:
            raise body.refuse(name, f"must be absent: {why}")
    *holders, format_name = response_format.split(".")
    holder = body
    for name in holders:
        holder = holder.fields(name)
    has_format = format_name in holder
    asked = {
        response_format: _of_response_format(holder.fields(format_name)) if has_format else None,
        "structured_outputs": _of_structured_outputs(body.fields("structured_outputs")),
        **{f"guided_{kind}": _of(body, f"guided_{kind}", kind) for kind in _KINDS},
        # Their clients send an empty text for none.
        **{name: _of(body, name, kind) for name, kind in _OTHERS.items() if body.value(name) != ""},
    }
    found = {name: each for name, each in asked.items() if each is not None}
    if len(found) > 1:
        raise InvalidRequestError(
            "structured_outputs", f"must be asked for once, got {' and '.join(found)}"
        )
    for own_name, grammar in found.values():
        body.own_names |= {grammar.field: own_name, "structured_outputs": own_name}
        return grammar
    return None


def _made(own_name: str, **grammar: Any) -> _Asked:
    """Return a grammar, and the name that its client has for it.

    Raises:
        InvalidRequestError: there is no such grammar.
    """
    try:
        return own_name, StructuredOutputsParams(**grammar)
    except InvalidRequestError as error:
        raise error.renamed(own_name) from None


def _of_response_format(fields: Fields) -> _Asked | None:
    kind, own_name = fields.text("type"), fields.path("").removesuffix(".")
    obeyed = {"json_object": ("schema",), "json_schema": ("schema", "json_schema")}.get(kind, ())
    match kind:
        case "text" | "json_object" | "json_schema":
            for name in _CONSTRAINTS:
                if name in fields and name not in obeyed:
                    raise fields.refuse(name, f"must be absent where type is {kind!r}")
    match kind:
        case "text":
            return None
        case "json_object":
            # That of other servers may have one.
            if "schema" in fields:
                schema = {"type": "object", **fields.mapping("schema")}
                return _made(fields.path("schema"), json=schema)
            return _made(own_name, json_object=True)
        case "structural_tag":
            return _made(own_name, structural_tag=fields.as_mapping())
        case "json_schema":
            # Chats put it one level deeper than responses.
            place = fields.fields("json_schema") if "json_schema" in fields else fields
            if "schema" not in place:
                is_chat = place is fields and own_name == "response_format"
                name = "json_schema" if is_chat else "schema"
                what = "an object with a JSON schema" if is_chat else "a JSON schema"
                raise place.refuse(name, f"must be {what}, got none")
            return _made(place.path("schema"), json=place.mapping("schema"))
        case other:
            raise fields.refuse(
                "type",
                "must be 'text', 'json_object', 'json_schema' or 'structural_tag', "
                f"got {repr(other[:32]) if 'type' in fields else 'none'}",
            )


def _of_structured_outputs(fields: Fields) -> _Asked | None:
    if not fields.names():
        return None
    for name in fields.names():
        if name not in _KINDS and not (name in _SWITCHES and not fields.boolean(name)):
            raise fields.refuse(name, "must be absent: it is not supported")
    found = [grammar for kind in _KINDS if (grammar := _of(fields, kind, kind)) is not None]
    if len(found) != 1:
        raise InvalidRequestError(
            "structured_outputs", f"must have exactly one of {', '.join(_KINDS)}, got {len(found)}"
        )
    return found[0]


def _of(fields: Fields, name: str, kind: str) -> _Asked | None:
    """Return the grammar that a field holds, None for none."""
    if name not in fields:
        return None
    value: Any
    match kind:
        case "json" | "structural_tag":
            is_text = isinstance(fields.value(name), str)
            value = fields.text(name) if is_text else fields.mapping(name)
        case "json_object":
            value = fields.boolean(name)
            if not value:
                return None
        case "choice":
            value = fields.texts(name, MAX_CHOICES)
            if not value:
                raise fields.refuse(name, "must have at least 1 item, got 0")
        case _:
            value = fields.text(name)
    return _made(fields.path(name), **{kind: value})
