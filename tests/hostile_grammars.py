"""Grammars that nobody should send: hours, gigabytes or the stack, within 64 KiB."""

from typing import Any


def chain(rule: str, last: str, count: int) -> str:
    """Return a grammar of so many rules, each of which is the next one and more."""
    rules = [rule.format(i, i + 1) for i in range(count)]
    return "\n".join(["start: r0", *rules, f"r{count}: {last}"])


def _references(count: int) -> dict[str, Any]:
    return {
        f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(count)
    }


# By name: fields of StructuredOutputsParams, and a part of why they are refused; "" for those that
# may be taken, if they cost little.
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "rules that end the stack": (
        {"grammar": chain('r{}: r{} "x"', '"y"', 3000)},
        "at most 4 MiB of stack",
    ),
    "references that end the stack": (
        {"json": {"$ref": "#/$defs/a0", "$defs": {**_references(1000), "a1000": {"type": "null"}}}},
        "",
    ),
    "a divisor": ({"json": {"type": "integer", "multipleOf": 9_999_991}}, "0.5 s of processor"),
    "nested quantifiers": ({"regex": "((a{1,100}){1,100}){1,100}"}, "within its limits"),
    "a long repetition": ({"regex": "a{65000}"}, ""),
    "a product of choices": (
        {
            "json": {
                "allOf": [
                    {"anyOf": [{"type": "object", "required": [f"p{i}{j}"]} for j in range(6)]}
                    for i in range(8)
                ]
            }
        },
        "",
    ),
    "circles": (
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        "must allow some text",
    ),
    "ambiguity": ({"grammar": 'start: s\ns: s s | s s s | "a" | '}, ""),
    "many optional properties": (
        {"json": {"properties": {f"p{i}": {"type": "string"} for i in range(1500)}}},
        "",
    ),
}
