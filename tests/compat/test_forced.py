"""Stock clients read the same calls of tools, and the same values of a schema, as was forced."""

import pytest

from tests.compat.cases import CALLS, VALUES
from tests.compat.site import Site, compare, node_answers, python_answers

pytestmark = [pytest.mark.compat, pytest.mark.asyncio(loop_scope="session")]

TOOLS = ("openai_tools", "openai_tools_streamed", "langchain_tools")
SCHEMAS = ("openai_schema", "openai_parsed", "openai_responses_parsed", "langchain_structured")


async def test_the_answers_differ(site: Site) -> None:
    assert {name for name, _ in site.calls} == {"describe", "move_item"}
    assert len({repr(call) for call in site.calls}) > len(CALLS) // 2
    assert len({repr(value) for value in site.values}) > len(VALUES) // 2


@pytest.mark.parametrize("name", TOOLS)
async def test_a_python_client_gets_the_same_calls(site: Site, name: str) -> None:
    compare(name, CALLS, await python_answers(name, site.task, CALLS), site.calls)


async def test_a_node_client_gets_the_same_calls(site: Site) -> None:
    answered = await node_answers("node_openai_tools", site.task, CALLS)
    compare("node_openai_tools", CALLS, answered, site.calls)


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_python_client_gets_the_same_values(site: Site, name: str) -> None:
    compare(name, VALUES, await python_answers(name, site.task, VALUES), site.values)
