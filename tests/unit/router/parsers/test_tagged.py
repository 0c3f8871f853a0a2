"""Types of tagged arguments come from the tool's schema, which is read once for each tool."""

import json
from typing import Any

import pytest

from quire.contract.chat import Tool
from router.chat.parsers import tagged
from router.chat.parsers.events import ArgumentsDelta, CallIds

SCHEMA = {"properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
CALL = (
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>b</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (json.dumps(SCHEMA), {"a": "1", "b": 1}),
        ("", {"a": 1, "b": 1}),
        ("{", {"a": 1, "b": 1}),
        ('{"properties": [1]}', {"a": 1, "b": 1}),
        ('{"properties": {"a": 5, "b": {"type": 5}}}', {"a": 1, "b": 1}),
    ],
)
def test_a_schema_is_read_once(monkeypatch, parameters: str, expected: dict[str, Any]) -> None:
    read: list[str] = []
    plain = tagged._members
    monkeypatch.setattr(tagged, "_members", lambda tool: read.append(tool.name) or plain(tool))
    parser = tagged.GlmCalls(CallIds("id", 0), (Tool("f", parameters=parameters),))
    for _ in range(2):
        events = parser.feed(CALL)
        arguments = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
        assert json.loads(arguments) == expected
    parser.finish()
    assert read == ["f"]
