"""Every front answers the same table of requests with the same text, through stock clients.

Each client is a program of clients/ that runs in an environment of its own (setup.sh).
"""

import pytest

from tests.compat.cases import CASES
from tests.compat.site import (
    CLIENTS,
    INSTALLED,
    Site,
    answers,
    compare,
    node_answers,
    python_answers,
    skip_without,
)

pytestmark = [pytest.mark.compat, pytest.mark.asyncio(loop_scope="session")]

# Scripts whose prompt is the only message of a conversation; those of the others is a text.
CHATS = (
    *("openai_chat", "openai_chat_streamed", "openai_responses"),
    *("langchain_chat", "litellm_chat"),
    *("anthropic_messages", "anthropic_messages_streamed"),
)
TEXTS = (
    *("openai_completions", "openai_completions_streamed", "llama_index_completions", "curl"),
    *("triton_infer", "triton_stream", "vllm_engine", "buf_curl"),
)
NODE = ("node_openai", "node_grpc")
# These answer with token ids.
BY_TOKENS = ("vllm_engine",)


async def test_the_table_is_large_and_its_answers_differ(site: Site) -> None:
    assert len(CASES) >= 150
    assert len({tuple(tokens) for _, tokens in site.texts}) > len(CASES) // 2
    assert [text for text, _ in site.texts] != [text for text, _ in site.chats]


@pytest.mark.parametrize("name", (*TEXTS, *CHATS))
async def test_a_python_client_gets_the_same_answers(site: Site, name: str) -> None:
    expected = site.chats if name in CHATS else site.texts
    wanted = [tokens if name in BY_TOKENS else text for text, tokens in expected]
    compare(name, CASES, await python_answers(name, site.task, CASES), wanted)


@pytest.mark.parametrize("name", NODE)
async def test_a_node_client_gets_the_same_answers(site: Site, name: str) -> None:
    answered = await node_answers(name, site.task, CASES)
    compare(name, CASES, answered, [text for text, _ in site.texts])


async def test_a_ruby_client_gets_the_same_answers(site: Site) -> None:
    skip_without("ruby")
    command = ["ruby", "-I", str(INSTALLED / "ruby"), str(CLIENTS / "ruby_grpc.rb")]
    answered = await answers(command, site.task, CASES, CLIENTS)
    compare("ruby_grpc", CASES, answered, [text for text, _ in site.texts])


async def test_a_cpp_client_gets_the_same_answers(site: Site) -> None:
    skip_without("cpp")
    answered = await answers([str(INSTALLED / "cpp/cpp_grpc")], site.task, CASES, CLIENTS)
    compare("cpp_grpc", CASES, answered, [text for text, _ in site.texts])
