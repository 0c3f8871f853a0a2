"""A server with OpenAI's API that computes nothing, and misbehaves as a test wants it to."""

import asyncio
import json
import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "fake"
EXTRAS = frozenset(("return_token_ids", "logprobs", "ignore_eos", "seed", "top_k"))


class BrokenStreamError(Exception):
    """Ends a stream as if its process had been killed."""


@dataclass
class FakeServer:
    """What the server is, and what is wrong with it.

    Attributes:
        extras: that it obeys; others are ignored, and refused if `is_strict`.
        has_event_ids: its events have ids, and Last-Event-ID goes on behind one.
        most_alike: streams at once, beyond which answers change.
        most_streams: at once; others wait.
        is_unsteady: no two answers are the same.
        fault: of streams beside others: "error", "hang", "drop" or "logprobs".
        has_stale_cache: a prompt is answered another way once a longer one was asked.
        forgets_who_left: answers change once a client has disconnected.
        victim: process whose end breaks every stream that is open then.
        after_kill: what is wrong with streams that go on: "repeats", "loses", "changes" or "down".
        chat_fields: of a chat's events, in which its text is.
        lists_model: whether it does; it answers for any name.
    """

    extras: frozenset[str] = EXTRAS
    is_strict: bool = False
    has_event_ids: bool = True
    most_alike: int = 10_000
    most_streams: int = 10_000
    is_unsteady: bool = False
    fault: str = ""
    has_stale_cache: bool = False
    forgets_who_left: bool = False
    victim: "subprocess.Popen[bytes] | None" = None
    after_kill: str = ""
    chat_fields: tuple[str, ...] = ("content",)
    lists_model: bool = True
    url: str = ""
    paths: set[str] = field(default_factory=set)
    num_left: int = 0
    _num_open: int = 0
    _prompts: set[str] = field(default_factory=set)

    @property
    def _was_killed(self) -> bool:
        return self.victim is not None and self.victim.poll() is not None

    async def models(self, _: Request) -> Response:
        if self._was_killed and self.after_kill == "down":
            return Response(status_code=502)
        listed = [{"id": MODEL, "max_model_len": 512}] if self.lists_model else []
        return JSONResponse({"object": "list", "data": listed})

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.paths.add(request.url.path)
        refused = sorted((EXTRAS - self.extras) & body.keys())
        if self.is_strict and refused:
            return JSONResponse({"error": {"message": f"no {refused[0]}"}}, 400)
        if self._was_killed and self.after_kill == "down":
            return Response(status_code=502)
        if self.fault == "error" and self._num_open:
            return JSONResponse({"error": {"message": "out of memory"}}, 500)
        received = int(request.headers.get("last-event-id", "0"))
        events = self._stream(request.url.path, body, received)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _stream(self, path: str, body: dict[str, Any], received: int) -> AsyncIterator[str]:
        while self._num_open >= self.most_streams:
            await asyncio.sleep(0.001)
        was_killed, is_whole = self._was_killed, False
        self._num_open += 1
        try:
            prompt = body.get("prompt") or body["messages"][-1]["content"]
            self._prompts.add(prompt)
            tokens, logprobs = self._compute(body, prompt)
            if received:
                received += {"repeats": -2, "loses": 2}.get(self.after_kill, 0)
                if self.after_kill == "changes":
                    tokens = [token + 1 for token in tokens]
            for place in range(max(0, received), len(tokens)):
                await asyncio.sleep(0.002)
                await self._misbehave(place)
                if was_killed != self._was_killed:
                    raise BrokenStreamError
                noise = 1e-6 if self.fault == "logprobs" and self._num_open > 1 else 0.0
                choice = self._choice(path, body, tokens[place], logprobs[place] + noise)
                choice["finish_reason"] = "length" if place + 1 == len(tokens) else None
                event_id = f"id: {place + 1}\n" if self.has_event_ids else ""
                yield f"{event_id}data: {json.dumps({'id': 'a', 'choices': [choice]})}\n\n"
            is_whole = True
            yield "data: [DONE]\n\n"
        finally:
            self._num_open -= 1
            self.num_left += not is_whole

    def _compute(self, body: dict[str, Any], prompt: str) -> tuple[list[int], list[float]]:
        """Return tokens and log-probabilities: by the request alone, if all is well."""
        seed: object = body.get("seed") if "seed" in self.extras else random.random()
        is_greedy = body["temperature"] == 0 or ("top_k" in self.extras and body.get("top_k") == 1)
        what = (prompt, None if is_greedy else (seed, body["temperature"]))
        is_stale = any(each != prompt and each.startswith(prompt) for each in self._prompts)
        wrong = (
            self._num_open > self.most_alike
            or (self.has_stale_cache and is_stale)
            or (self.forgets_who_left and self.num_left > 0)
        )
        rng = random.Random(f"{what}{random.random() if self.is_unsteady else ''}")
        tokens = [rng.randrange(100) for _ in range(body["max_tokens"])]
        if wrong:
            tokens[-1] += 1
        return tokens, [-rng.random() for _ in tokens]

    async def _misbehave(self, place: int) -> None:
        if self._num_open < 2 or place < 2:
            return
        if self.fault == "hang":
            await asyncio.sleep(3600)
        if self.fault == "drop":
            raise BrokenStreamError

    def _choice(
        self, path: str, body: dict[str, Any], token: int, logprob: float
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        is_chat = path.endswith("chat/completions")
        text = f"{token} "
        if is_chat:
            choice["delta"] = dict.fromkeys(self.chat_fields, text)
        else:
            choice["text"] = text
        if body.get("return_token_ids") and "return_token_ids" in self.extras:
            choice["token_ids"] = [token]
        if body.get("logprobs") and "logprobs" in self.extras:
            of_chat = {"content": [{"token": text, "logprob": logprob}]}
            of_text = {"tokens": [text], "token_logprobs": [logprob]}
            choice["logprobs"] = of_chat if is_chat else of_text
        return choice


@asynccontextmanager
async def serve(fake: FakeServer) -> AsyncIterator[FakeServer]:
    """Serve at a free port, while the block runs."""
    app = Starlette(
        routes=[
            Route("/v1/models", fake.models),
            Route("/v1/completions", fake.answer, methods=["POST"]),
            Route("/v1/chat/completions", fake.answer, methods=["POST"]),
        ]
    )
    # What a stream raises on purpose is no news.
    config = uvicorn.Config(app, "127.0.0.1", 0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    [listening] = server.servers
    fake.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = server.force_exit = True
        await serving
