"""What an adapter is: JSON objects in on standard input, one line each, an answer for each.

This file needs Python's standard library alone: it runs in the environments of all engines.
"""

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine is started.

    Attributes:
        model: directory of a model in bfloat16.
        dtype: "bfloat16", "float32" or "int8": of the weights; activations and cache of an int8
            model are bfloat16.
        num_threads: that compute.
        max_num_seqs: most requests at once.
        max_model_len: most tokens of one, prompt and answer.
        kv_gib: for the KV cache.
    """

    model: str
    dtype: str
    num_threads: int
    max_num_seqs: int
    max_model_len: int
    kv_gib: int

    def converted(self, engine: str, suffix: str = "") -> Path:
        """Return where an engine keeps the model in a form of its own."""
        model = Path(self.model)
        return model.with_name(f"{model.name}-{engine}-{self.dtype}{suffix}")


class UnsupportedError(Exception):
    """The engine cannot do what was asked for; the message is the reason."""


class Engine(ABC):
    """One engine, behind what it offers for streams of tokens."""

    def convert(self, options: Options) -> None:  # noqa: B027 - most engines read what is there
        """Write the model in the engine's own form, unless it is there.

        Raises:
            UnsupportedError: the engine has no such models.
        """

    @abstractmethod
    async def start(self, options: Options) -> str:
        """Load the model; return the engine's version."""

    async def prepare(self, num_seqs: int, num_tokens: int) -> None:  # noqa: B027 - as above
        """Expect so many requests at once from now on, each of at most so many tokens."""

    @abstractmethod
    def stream(self, prompt: list[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Yield how many tokens have come, as they come, greedily and past any end of text."""

    @abstractmethod
    async def stop(self) -> None:
        """Free everything."""


async def _answer(engine: Engine, requests: list[dict[str, Any]]) -> list[list[float]]:
    """Send requests when they are due; return the times of their tokens, in seconds."""
    began = time.perf_counter()

    async def one(request: dict[str, Any]) -> list[float]:
        times: list[float] = []
        await asyncio.sleep(began + request["arrival_s"] - time.perf_counter())
        async for number in engine.stream(request["prompt"], request["max_tokens"]):
            times += [time.perf_counter() - began] * number
        return times

    return await asyncio.gather(*map(one, requests))


async def _do(engine: Engine, command: dict[str, Any]) -> dict[str, Any]:
    match command.pop("do"):
        case "convert":
            engine.convert(Options(**command))
            return {}
        case "start":
            return {"version": await engine.start(Options(**command))}
        case "run":
            requests = command["requests"]
            longest = max(len(each["prompt"]) + each["max_tokens"] for each in requests)
            await engine.prepare(len(requests), longest)
            return {"token_times": await _answer(engine, requests)}
        case "stop":
            await engine.stop()
            return {}
        case other:
            raise ValueError(f"do: must be convert, start, run or stop, got {other}")


async def _serve(engine: Engine, replies: int) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            reply = await _do(engine, json.loads(line))
        except UnsupportedError as error:
            reply = {"unsupported": str(error)}
        except Exception as error:
            # Whatever an engine raises is one missing row, not the end of the others.
            reply = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(os.dup(replies), "w") as file:
            file.write(json.dumps(reply) + "\n")


def serve(engine: Engine) -> None:
    """Obey commands until standard input ends; what the engine prints goes to standard error."""
    replies = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(_serve(engine, replies))
