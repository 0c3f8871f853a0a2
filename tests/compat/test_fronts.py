"""Every front answers the same table of requests with the same text, through stock clients.

Each client is a script of clients/ that runs in an environment of its own (setup.sh).
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire import AsyncClient
from tests.compat.cases import CASES, Case
from tests.e2e.conftest import running_cluster

pytestmark = [pytest.mark.compat, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests/compat/clients"
INSTALLED = ROOT / "build/compat"
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


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, and what its own client answers to each case: text and token ids."""

    task: dict[str, Any]
    texts: list[tuple[str, list[int]]]
    chats: list[tuple[str, list[int]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    async with running_cluster(http_port=0) as cluster:
        router = next(each for each in cluster.services if each.name.startswith("router"))
        async with AsyncClient(router.address) as client:
            (model,) = await client.list_models()

            async def answer(case: Case, is_chat: bool) -> tuple[str, list[int]]:
                if is_chat:
                    messages = [{"role": "user", "content": case.prompt}]
                    done = await client.chat(messages, case.sampling_params)
                else:
                    done = await client.generate(case.prompt, case.sampling_params)
                return done.text, list(done.token_ids)

            texts = await asyncio.gather(*(answer(case, False) for case in CASES))
            chats = await asyncio.gather(*(answer(case, True) for case in CASES))
        task = {
            "grpc": router.address,
            "http": f"http://{router.http_address}",
            "model": model.name,
            "protos": str(ROOT / "protos"),
            "buf": str(Path(sys.executable).with_name("buf")),
            "cases": [asdict(case) for case in CASES],
        }
        yield Site(task, list(texts), list(chats))


async def answers(command: list[str], task: dict[str, Any], cwd: Path) -> list[Any]:
    """Return what a client script answers to the cases of a task."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate(json.dumps(task).encode())
    assert process.returncode == 0, errors.decode()[-3000:]
    answered: list[Any] = json.loads(out)
    return answered


def compare(name: str, answered: list[Any], expected: list[tuple[str, list[int]]]) -> None:
    wanted = [each[1] if name in BY_TOKENS else each[0] for each in expected]
    different = [
        (case, got, want)
        for case, got, want in zip(CASES, answered, wanted, strict=True)
        if got != want
    ]
    print(f"{name}: {len(wanted) - len(different)} of {len(wanted)} equal")
    assert not different, different[0]


async def test_the_table_is_large_and_its_answers_differ(site: Site) -> None:
    assert len(CASES) >= 150
    assert len({tuple(tokens) for _, tokens in site.texts}) > len(CASES) // 2
    assert [text for text, _ in site.texts] != [text for text, _ in site.chats]


@pytest.mark.parametrize("name", (*TEXTS, *CHATS))
async def test_a_python_client_gets_the_same_answers(site: Site, name: str) -> None:
    python = INSTALLED / "python/bin/python"
    answered = await answers([str(python), str(CLIENTS / f"{name}.py")], site.task, CLIENTS)
    compare(name, answered, site.chats if name in CHATS else site.texts)


def skip_without(language: str) -> None:
    if not (INSTALLED / language / "done").exists():
        pytest.skip(f"setup.sh found no tools for clients in {language}, and named what to install")


@pytest.mark.parametrize("name", NODE)
async def test_a_node_client_gets_the_same_answers(site: Site, name: str) -> None:
    skip_without("node")
    script = shutil.copy(CLIENTS / f"{name}.mjs", INSTALLED / "node")
    answered = await answers(["node", str(script)], site.task, INSTALLED / "node")
    compare(name, answered, site.texts)


async def test_a_ruby_client_gets_the_same_answers(site: Site) -> None:
    skip_without("ruby")
    command = ["ruby", "-I", str(INSTALLED / "ruby"), str(CLIENTS / "ruby_grpc.rb")]
    compare("ruby_grpc", await answers(command, site.task, CLIENTS), site.texts)


async def test_a_cpp_client_gets_the_same_answers(site: Site) -> None:
    skip_without("cpp")
    answered = await answers([str(INSTALLED / "cpp/cpp_grpc")], site.task, CLIENTS)
    compare("cpp_grpc", answered, site.texts)
