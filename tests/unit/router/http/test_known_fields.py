"""Every field that clients' APIs know is obeyed, refused or ignored for a reason."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.contract.errors import InvalidRequestError
from router.http.chat import request as chat
from router.http.completions import request as completions
from router.http.embeddings import request as vectors
from router.http.fields import Fields
from router.http.known_fields import OTHER, TABLES, Kind, UnknownFields
from router.http.messages import request as messages
from router.http.responses import request as responses

# OpenAI's, Anthropic's and vLLM's (0.33) request models.
API_FIELDS = {
    route: names.split()
    for route, names in json.loads(Path(__file__).with_name("api_fields.json").read_text()).items()
}
CHAT = "/v1/chat/completions"
GENERATING = (CHAT, "/v1/completions", "/generate", "/v1/responses", "/v1/messages")
COMPARING = ("/v1/embeddings", "/score", "/rerank")
SAID = [{"role": "user", "content": "a"}]
READERS: dict[str, tuple[dict[str, Any], Callable[[Fields], object]]] = {
    "/v1/chat/completions": ({"messages": SAID}, chat.read_request),
    "/v1/completions": ({"prompt": "a"}, completions.read_request),
    "/v1/responses": ({"input": "a"}, lambda body: responses.read_request(body, "id")),
    "/v1/messages": ({"messages": SAID, "max_tokens": 1}, messages.read_request),
    "/v1/embeddings": ({"input": "a"}, vectors.read_embeddings),
    "/score": ({"text_1": "a", "text_2": "b"}, vectors.read_score),
    "/rerank": ({"query": "a", "documents": ["b"]}, vectors.read_rerank),
}
# Read by what is around every endpoint, or with the call.
ELSEWHERE = {"request_id", "resume"}
WRONG: dict[Kind, object] = {
    Kind.TEXT: 1,
    Kind.BOOLEAN: "yes",
    Kind.INTEGER: "1",
    Kind.NUMBER: "1",
    Kind.OBJECT: "a",
    Kind.ARRAY: {"a": 1},
}
RIGHT: dict[Kind, object] = {
    Kind.TEXT: "a",
    Kind.BOOLEAN: True,
    Kind.INTEGER: 1,
    Kind.NUMBER: 0.5,
    Kind.OBJECT: {"a": 1},
    Kind.ARRAY: [1],
    Kind.ANY: "a",
}


class Read(Mapping[str, Any]):
    """The values of a body, and which of its names were asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@pytest.mark.parametrize("route", API_FIELDS)
def test_every_field_of_an_api_has_its_place(route: str) -> None:
    table = TABLES[route]
    missing = set(API_FIELDS[route]) - table.obeyed - set(table.rules)
    assert not missing


@pytest.mark.parametrize("route", READERS)
def test_what_is_said_to_be_obeyed_is_read(route: str) -> None:
    body, reader = READERS[route]
    read = Read(body)
    reader(Fields(read))
    either = {"/score": "text_1", "/rerank": "query"}.get(route)
    obeyed = TABLES[route].obeyed - ELSEWHERE
    if either:  # the table is of both, and a body has one pair of names
        pairs = {"text_1", "text_2", "data_1", "data_2", "queries", "items", "documents"}
        obeyed -= pairs | ({"query", "top_n", "return_documents"} if route == "/score" else set())
    assert obeyed <= read.names


@pytest.mark.parametrize(
    ("route", "name"), [(route, name) for route, table in TABLES.items() for name in table.rules]
)
def test_a_rule_holds(route: str, name: str) -> None:
    rule, table = TABLES[route].rules[name], TABLES[route]
    if name in table.obeyed:
        pytest.fail(f"{name} has a rule that nothing reads")
    if rule.kind in WRONG:
        with pytest.raises(InvalidRequestError, match=rf"^{name}: must be {rule.kind.value}, got"):
            table.check(Fields({name: WRONG[rule.kind]}))
    for nothing in (None, *({False} if rule.kind is Kind.BOOLEAN else ())):
        assert table.check(Fields({name: nothing})) == []
    if rule.is_refused:
        with pytest.raises(InvalidRequestError, match=f"^{name}: must be absent: {rule.why}$"):
            table.check(Fields({name: RIGHT[rule.kind]}))
    else:
        assert table.check(Fields({name: RIGHT[rule.kind]})) == []


@pytest.mark.parametrize(
    ("route", "field", "value", "why"),
    [
        ("/v1/responses", "response_format", {"type": "json_object"}, "called text.format here"),
        ("/v1/responses", "max_tokens", 5, "called max_output_tokens here"),
        ("/v1/responses", "max_completion_tokens", 5, "called max_output_tokens here"),
        ("/v1/responses", "logprobs", True, "include and top_logprobs ask for them"),
        ("/v1/responses", "messages", SAID, "called input here"),
        ("/v1/responses", "functions", [{"name": "f"}], "called tools here"),
        ("/v1/chat/completions", "max_output_tokens", 5, "called max_completion_tokens here"),
        ("/v1/chat/completions", "input", "a", "called messages here"),
        ("/v1/chat/completions", "instructions", "a", "give it in a message"),
        ("/v1/chat/completions", "previous_response_id", "a", "whole conversation as messages"),
        ("/v1/completions", "max_completion_tokens", 5, "called max_tokens here"),
        ("/v1/completions", "messages", SAID, "called prompt here"),
        ("/v1/completions", "tools", [{}], "only conversations have tools"),
        ("/v1/messages", "max_completion_tokens", 5, "called max_tokens here"),
        ("/v1/messages", "response_format", {"type": "json_object"}, "output_config.format here"),
        ("/v1/messages", "parallel_tool_calls", False, "tool_choice.disable_parallel_tool_use"),
        ("/v1/responses", "resumable", True, "called background here"),
        ("/v1/responses", "return_token_ids", True, "events show token_ids"),
        ("/v1/embeddings", "prompt", "a", "called input here"),
        ("/score", "dimensions", 8, "whole vectors are compared"),
        ("/rerank", "dimensions", 8, "whole vectors are compared"),
        ("/generate", "messages", SAID, "called prompt here"),
        ("/generate", "resume", "yes", "an object"),
        ("/generate", "resume", {"id": "a"}, "no ids to go on from"),
    ],
)
def test_a_name_of_another_api_is_told_what_it_is_called(
    route: str, field: str, value: object, why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{field}: must be .*{why}"):
        TABLES[route].check(Fields({field: value}))


@pytest.mark.parametrize(
    ("route", "body", "why"),
    [
        (CHAT, {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
         "text.format: must be absent: it is called response_format here"),
        (CHAT, {"text": "Hi"}, "text: must be absent: it is called messages here"),
        (CHAT, {"output_config": {"effort": "low"}},
         "output_config.effort: must be absent: it is called reasoning_effort here"),
        (CHAT, {"output_config": {"format": {"type": "json_schema"}}},
         "output_config.format: must be absent: it is called response_format here"),
        (CHAT, {"reasoning": {"effort": "low"}},
         "reasoning.effort: must be absent: it is called reasoning_effort here"),
        (CHAT, {"reasoning": {"enabled": False}}, "reasoning.enabled: must be absent"),
        ("/v1/responses", {"output_config": {"effort": "low"}},
         "output_config.effort: must be absent: it is called reasoning.effort here"),
        ("/v1/responses", {"thinking": {"type": "disabled"}}, "thinking.type: must be absent"),
        ("/v1/responses", {"function_call": "none", "tools": [{}]},
         "function_call: must be absent: it is called tool_choice here"),
        ("/v1/messages", {"function_call": "none", "tools": [{}]},
         "function_call: must be absent: it is called tool_choice here"),
        ("/v1/messages", {"reasoning": {"effort": "low"}},
         "reasoning.effort: must be absent: it is called output_config.effort here"),
        ("/v1/completions", {"output_config": {"effort": "low"}},
         "output_config.effort: must be absent: prompts are texts here"),
        ("/generate", {"text": "Hi", "sampling_params": {}},
         "text: must be absent: it is called prompt here"),
        ("/generate", {"sampling_params": {"n": 2}},
         "sampling_params: must be absent: its fields stand beside prompt"),
    ],
)  # fmt: skip
def test_a_member_is_told_what_it_is_called(route: str, body: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(why)}"):
        TABLES[route].check(Fields(body))


@pytest.mark.parametrize("routes", [GENERATING, COMPARING])
def test_what_one_endpoint_obeys_the_others_know(routes: Sequence[str]) -> None:
    """What asks for nothing there is ignored for a reason; the rest is refused."""
    obeyed = set().union(*(TABLES[route].obeyed for route in routes))
    for route in routes:
        assert not obeyed - TABLES[route].obeyed - set(TABLES[route].rules), route


def test_a_name_of_another_api_may_ask_for_nothing() -> None:
    for route, body in (
        (CHAT, {"text": {"verbosity": "low"}}),
        (CHAT, {"text": {"format": {"type": "text"}, "verbosity": "medium"}}),
        (CHAT, {"reasoning": {"summary": "auto", "effort": None, "exclude": False}}),
        ("/v1/responses", {"thinking": {"type": "adaptive"}, "resumable": False}),
        ("/v1/responses", {"function_call": "none", "tools": []}),
        ("/v1/messages", {"function_call": "auto", "tools": [{}]}),
        ("/generate", {"sampling_params": {}, "top_logprobs": 3, "return_token_ids": True}),
        ("/score", {"encoding_format": "float", "normalize": True}),
        ("/v1/responses", {"response_format": {"type": "text"}, "logprobs": False}),
        ("/v1/responses", {"modalities": ["text"], "add_generation_prompt": True}),
        ("/v1/chat/completions", {"text": {"format": {"type": "text"}}, "truncation": "disabled"}),
        ("/v1/completions", {"tools": [], "tool_choice": "auto"}),
        ("/v1/messages", {"parallel_tool_calls": True, "response_format": {"type": "text"}}),
    ):
        assert TABLES[route].check(Fields(body)) == []


def test_fields_of_no_table_are_counted_by_name() -> None:
    table, unknown = TABLES["/v1/chat/completions"], UnknownFields()
    body = Fields({"messages": SAID, "my_own": 1, "a" * 65: 1, "with space": 1})
    unknown.add("r", table.check(body))
    assert unknown.counts == {("r", "my_own"): 1, ("r", OTHER): 2}
    for number in range(2 * UnknownFields.MAX_NAMES):
        unknown.add("r", [f"name{number}"])
    assert len(unknown.counts) == UnknownFields.MAX_NAMES
    assert unknown.counts["r", OTHER] > UnknownFields.MAX_NAMES


def test_zero_is_not_nothing() -> None:
    table = TABLES["/v1/chat/completions"]
    for name in ("thinking_token_budget", "routed_experts_prompt_start"):
        with pytest.raises(InvalidRequestError, match=f"^{name}: must be absent"):
            table.check(Fields({name: 0}))
    assert TABLES["/score"].check(Fields({"max_tokens_per_doc": 0})) == []
