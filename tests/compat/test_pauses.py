"""Stock clients read streams that pause: each step waits until heartbeats have gone out."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.compat.cases import PROMPTS, Case
from tests.compat.site import compare, node_answers, python_answers
from tests.rpc.http_setup import HttpSetup, http_router, stepping_after

pytestmark = [pytest.mark.compat, pytest.mark.asyncio(loop_scope="module")]

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CASES = [Case(prompt, {"temperature": 0.0, "max_tokens": 6}) for prompt in PROMPTS[:8]]
# Of the fake, a conversation of one message says what the message as a prompt does.
PYTHON = (
    *("openai_chat_streamed", "openai_completions_streamed"),
    *("anthropic_messages_streamed", "langchain_chat_streamed"),
)
NODE = ("node_openai", "node_ai_sdk")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE, sse_keep_alive_interval=0.05) as made:
        yield made


@pytest.mark.parametrize("name", (*PYTHON, *NODE))
async def test_a_stock_client_reads_on_after_a_pause(setup: HttpSetup, name: str) -> None:
    task = {"http": f"http://{setup.router.http_address}", "model": "fake"}
    expected = [
        (await setup.client.generate(case.prompt, case.sampling_params)).text for case in CASES
    ]
    answer = node_answers if name in NODE else python_answers
    async with stepping_after(setup, 2):
        answered = await answer(name, task, CASES)
    compare(name, CASES, answered, expected)
