"""A cluster that clients are pointed at, and what its own client answers to the tables."""

import asyncio
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quire import AsyncClient
from tests.compat.cases import Case

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests/compat/clients"
INSTALLED = ROOT / "build/compat"
# As the demo model's chat template has calls of tools.
CALL = re.compile("<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, and what its own client answers to each case.

    Attributes:
        task: what each client script is given, but for the cases.
        texts: text and token ids, for each of CASES as a prompt.
        chats: likewise as a conversation.
        calls: name and arguments of the first call, for each of CALLS.
        values: what the JSON says, for each of VALUES.
    """

    task: dict[str, Any]
    texts: list[tuple[str, list[int]]]
    chats: list[tuple[str, list[int]]]
    calls: list[list[Any]]
    values: list[dict[str, Any]]


async def generate(client: AsyncClient, case: Case) -> tuple[str, list[int]]:
    """Return text and token ids of an answer to a prompt."""
    done = await client.generate(case.prompt, case.sampling_params)
    return done.text, list(done.token_ids)


async def chat(client: AsyncClient, case: Case) -> tuple[str, list[int]]:
    """Return text and token ids of an answer in a conversation."""
    done = await client.chat(case.messages, case.sampling_params, **case.tools)
    return done.text, list(done.token_ids)


def first_call(text: str) -> list[Any]:
    """Return name and arguments of the first call that a text makes; later ones may be cut."""
    found = CALL.search(text)
    assert found is not None, text
    call = json.loads(found[1])
    return [call["name"], call["arguments"]]


def skip_without(language: str) -> None:
    """Skip a test for want of a language."""
    if not (INSTALLED / language / "done").exists():
        pytest.skip(f"setup.sh found no tools for clients in {language}, and named what to install")


async def python_answers(name: str, task: dict[str, Any], cases: list[Case]) -> list[Any]:
    """Return what a script of Python answers to cases."""
    python = INSTALLED / "python/bin/python"
    return await answers([str(python), str(CLIENTS / f"{name}.py")], task, cases, CLIENTS)


async def node_answers(name: str, task: dict[str, Any], cases: list[Case]) -> list[Any]:
    """Return what a script of Node answers to cases."""
    skip_without("node")
    # Node looks for packages beside the script.
    directory = INSTALLED / "node"
    script = directory / f"{name}.mjs"
    script.write_bytes((CLIENTS / script.name).read_bytes())
    return await answers(["node", str(script)], task, cases, directory)


async def answers(
    command: list[str], task: dict[str, Any], cases: list[Case], cwd: Path
) -> list[Any]:
    """Return what a client's program answers to cases."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    own = [{"prompt": case.prompt, "params": case.params} for case in cases]
    out, errors = await process.communicate(json.dumps({**task, "cases": own}).encode())
    assert process.returncode == 0, errors.decode()[-3000:]
    answered: list[Any] = json.loads(out)
    return answered


def compare(name: str, cases: list[Case], answered: list[Any], expected: list[Any]) -> None:
    """Check that all answers are as expected, and print how many are."""
    different = [
        (case, got, want)
        for case, got, want in zip(cases, answered, expected, strict=True)
        if got != want
    ]
    print(f"{name}: {len(expected) - len(different)} of {len(expected)} equal")
    assert not different, different[0]
