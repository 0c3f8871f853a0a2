"""A prompt that no worker survives fails alone; the other streams of its cluster are as ever."""

import asyncio
from pathlib import Path

import pytest

from quire import AsyncClient, SamplingParams
from quire.contract.errors import QuarantinedError
from tests.e2e.conftest import StartCluster

POISON = [17, 19, 23, 29, 31]
PROMPTS = ("The list class", "Return a copy of the", "class Foo:")
PARAMS = SamplingParams(seed=3, max_tokens=400, ignore_eos=True)

# Python imports a module of this name wherever it starts. Each worker ends, as by a fault of a
# kernel, at a step that brings the poison; a byte in a file counts that.
PLANTED = """
import os, signal, sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "worker_svc.worker":
            return None
        sys.meta_path.remove(self)
        from worker_svc.steps.runner import ModelRunner

        execute = ModelRunner.execute

        def execute_or_die(self, outputs):
            if any(list(each.token_ids[:5]) == {poison} for each in outputs.new_sequences):
                with open({deaths!r}, "a") as file:
                    file.write("x")
                os.kill(os.getpid(), signal.SIGKILL)
            return execute(self, outputs)

        ModelRunner.execute = execute_or_die
        return None


sys.meta_path.insert(0, Finder())
"""


async def test_a_prompt_that_no_worker_survives_fails_alone(
    start_cluster: StartCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = tmp_path / "deaths"
    planted = PLANTED.format(poison=POISON, deaths=str(deaths))
    (tmp_path / "sitecustomize.py").write_text(planted)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with start_cluster() as cluster, AsyncClient(cluster.router.address) as client:

        async def generate_all() -> list[tuple[int, ...]]:
            calls = (client.generate(prompt, PARAMS) for prompt in PROMPTS)
            return [each.token_ids for each in await asyncio.gather(*calls)]

        expected = await generate_all()
        others = asyncio.create_task(generate_all())
        with pytest.raises(QuarantinedError, match="quarantined: "):
            await client.generate(POISON, PARAMS)
        assert await others == expected
        # Twice alone: the first time, somebody might have killed the worker just then.
        assert deaths.read_text() == "xxx"
