"""The grammar of arguments that stand between tags, each by itself: strings as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.grammar import lark_regex, regex_of
from quire.json_schemas import cut_out
from router.chat.parsers.lark import TEXT, Rules, quoted
from router.chat.parsers.shapes import ALL_TYPES, NotServedError, Shape, shapes

_DAY = (
    "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8])"
)
_DATE = f"[1-9][0-9]{{3}}-({_DAY})"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR})"
_NUMBER = "[0-9]{1,6}"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_WORD = "[A-Za-z0-9_+-]+"
# Of strings that are written as they are: each a part of what JSON Schema 2020-12 allows.
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_NUMBER}D|({_NUMBER}D)?T({_NUMBER}H({_NUMBER}M({_NUMBER}S)?)?"
    f"|{_NUMBER}M({_NUMBER}S)?|{_NUMBER}S))",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|::1?",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "email": rf"{_WORD}(\.{_WORD})*@({_LABEL}\.){{1,3}}[A-Za-z]{{2,}}",
    "uri": r"[a-z][a-z0-9+.-]*:(//[A-Za-z0-9.-]+(:[0-9]{1,4})?)?"
    r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*(\?[A-Za-z0-9._~=&-]*)?",
}
# How text begins that a parser may take for a value of another type.
_BEGINS = {
    "number": r"[-+.0-9]|(?i:nan|inf)",
    "boolean": "(?i:true|false)",
    "null": "(?i:null|none)",
    "array": r"\[",
    "object": r"\{",
}


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands around an argument.

    Attributes:
        before: its name.
        between: the name and the value.
        end: behind the value.
        stop: what a value has nowhere: a parser ends it there.
    """

    before: str
    between: str
    end: str
    stop: str


def tagged_arguments(rules: Rules, schema: Mapping[str, Any], tags: Tags) -> str:
    """Return what derives the arguments that a schema allows, in its order.

    Args:
        rules: to be added to.
        schema: of an object, as `readable` returns it.
        tags: around each.

    Raises:
        NotServedError: it has what cannot be obeyed.
    """
    found = [
        each for each in shapes(schema, schema, "object", rules.visits) if "object" in each.types
    ]
    if not found:
        raise NotServedError("no object that it allows")
    made = [_members(rules, schema, each, tags) for each in found]
    return made[0] if len(made) == 1 else f"({' | '.join(made)})"


def any_arguments(rules: Rules, tags: Tags) -> str:
    """Return what derives any arguments, of any names."""
    name = rules.terminal(lark_regex("[^<>\\n]+"))
    value = rules.ended(TEXT, tags.end, tags.stop)
    return f'({rules.mark(tags.before)} {name} {rules.mark(tags.between)} {value} "\\n")*'


def _members(rules: Rules, root: Mapping[str, Any], shape: Shape, tags: Tags) -> str:
    if shape.unobeyed or shape.values is not None:
        raise NotServedError(next(iter(sorted(shape.unobeyed)), "const or enum of objects"))
    names = dict.fromkeys([*shape.properties, *shape.required])
    members = []
    for name in names:
        is_required = name in shape.required
        schemas = shape.properties.get(
            name, (True if shape.additional is None else shape.additional,)
        )
        value = _value(rules, root, schemas, tags)
        if value is None:
            if is_required:
                raise NotServedError(f"a value of {name[:64]}, which none can be")
            continue
        before, between = rules.mark(tags.before), rules.mark(tags.between)
        member = f'{before} {quoted(name)} {between} {value} "\\n"'
        members.append(member if is_required else f"({member})?")
    if not names and shape.additional not in (None, False):
        value = _value(rules, root, (shape.additional,), tags)
        if value is not None:
            name = rules.terminal(lark_regex("[^<>\\n]+"))
            before, between = rules.mark(tags.before), rules.mark(tags.between)
            members.append(f'({before} {name} {between} {value} "\\n")*')
    return " ".join(members) or '""'


def _value(rules: Rules, root: Mapping[str, Any], schemas: Sequence[Any], tags: Tags) -> str | None:
    """Return what derives a value and what ends it, None where none is allowed."""
    schema = schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}
    found = shapes(root, schema, "string", rules.visits)
    if not found:
        return None
    types = frozenset[str]().union(*(each.types for each in found))
    texts = [each for each in found if "string" in each.types]
    document = cut_out(dict(root), schema)
    if not texts or any(each.types == ALL_TYPES for each in found):
        return f"{rules.json(document)} {rules.mark(tags.end)}"
    others = types - {"string"}
    written = [rules.ended(_text(rules, each, others), tags.end, tags.stop) for each in texts]
    if others:
        beside = {"allOf": [document, {"type": sorted(others)}]}
        written.append(f"{rules.json(beside)} {rules.mark(tags.end)}")
    return written[0] if len(written) == 1 else f"({' | '.join(written)})"


def _text(rules: Rules, shape: Shape, others: frozenset[str]) -> str:
    """Return the expression of terminals of a string, as it is."""
    if shape.unobeyed & {"not", "if", "$dynamicRef"}:
        raise NotServedError(min(shape.unobeyed & {"not", "if", "$dynamicRef"}))
    most = "" if shape.most is None else shape.most
    parts = [f"(?s:.{{{shape.least},{most}}})"]
    parts += [_matching(each) for each in shape.patterns]
    parts += [_FORMATS[each] for each in shape.formats if each in _FORMATS]
    if shape.values is not None:
        texts = [each for each in shape.values if isinstance(each, str)]
        parts.append("|".join(map(regex_of, texts)))
    terms = [lark_regex(f"({each})") for each in parts]
    if others:
        begins = "|".join(_BEGINS[each] for each in sorted(others))
        terms.append("~" + lark_regex(rf"\s*({begins})(?s:.*)"))
    return " & ".join(terms)


def _matching(pattern: str) -> str:
    """Return the regex of texts with a match of a pattern: anchors stand at ends alone."""
    made = []
    for branch in _branches(pattern):
        before = "" if branch.startswith("^") else "(?s:.*)"
        is_closed = branch.endswith("$") and not branch.endswith("\\$")
        core = branch[branch.startswith("^") : len(branch) - is_closed]
        made.append(f"{before}({core}){'' if is_closed else '(?s:.*)'}")
    return "|".join(made)


def _branches(pattern: str) -> list[str]:
    """Return the alternatives of a regex."""
    found, depth, in_class, place = [""], 0, False, 0
    while place < len(pattern):
        each = pattern[place : place + 2] if pattern[place] == "\\" else pattern[place]
        place += len(each)
        if in_class:
            in_class = each != "]"
        elif each == "|" and not depth:
            found.append("")
            continue
        else:
            in_class = each == "["
            depth += {"(": 1, ")": -1}.get(each, 0)
        found[-1] += each
    return found
