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
    format_fields = body
    for name in response_format.split("."):
        format_fields = format_fields.fields(name)
    asked = {
        response_format: _of_response_format(format_fields),
        "structured_outputs": _of_structured_outputs(body.fields("structured_outputs")),
        **{f"guided_{kind}": _of(body, f"guided_{kind}", kind) for kind in _KINDS},
        # Their clients send an empty text for none.
        **{name: _of(body, name, kind) for name, kind in _OTHERS.items() if body.value(name) != ""},
    }
    found = {name: grammar for name, grammar in asked.items() if grammar is not None}
    if len(found) > 1:
        raise InvalidRequestError(
            "structured_outputs", f"must be asked for once, got {' and '.join(found)}"
        )
    return next(iter(found.values()), None)


def _of_response_format(fields: Fields) -> StructuredOutputsParams | None:
    kind = fields.text("type", "text")
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
                return StructuredOutputsParams(json={"type": "object", **fields.mapping("schema")})
            return StructuredOutputsParams(json_object=True)
        case "structural_tag":
            return StructuredOutputsParams(structural_tag=fields.as_mapping())
        case "json_schema":
            # Chats put it one level deeper than responses.
            place = fields.fields("json_schema") if "json_schema" in fields else fields
            if "schema" not in place:
                raise place.refuse("schema", "must be a JSON schema, got none")
            return StructuredOutputsParams(json=place.mapping("schema"))
        case other:
            raise fields.refuse(
                "type",
                "must be 'text', 'json_object', 'json_schema' or 'structural_tag', "
                f"got {other[:32]!r}",
            )


def _of_structured_outputs(fields: Fields) -> StructuredOutputsParams | None:
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


def _of(fields: Fields, name: str, kind: str) -> StructuredOutputsParams | None:
    """Return the grammar that a field holds, None for none."""
    if name not in fields:
        return None
    match kind:
        case "json" | "structural_tag":
            is_text = isinstance(fields.value(name), str)
            value: Any = fields.text(name) if is_text else fields.mapping(name)
            only: dict[str, Any] = {kind: value}
            return StructuredOutputsParams(**only)
        case "json_object":
            return StructuredOutputsParams(json_object=True) if fields.boolean(name) else None
        case "choice":
            return StructuredOutputsParams(choice=fields.texts(name, MAX_CHOICES))
        case "regex":
            return StructuredOutputsParams(regex=fields.text(name))
        case _:
            return StructuredOutputsParams(grammar=fields.text(name))
