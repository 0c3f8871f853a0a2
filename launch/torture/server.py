"""A server as the scenarios see it: questions in, answers out, each within a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from launch.torture.answers import Answer, Received
from launch.torture.errors import AskError, BrokenError, RefusedError, TimedOutError
from launch.torture.questions import Question
from launch.torture.transport import Transport
from quire.contract.errors import ConfigError

# "Come again later" of HTTP: such a question is asked again within its time.
LATER = frozenset((429, 503))
_MAX_PAUSE_S = 2.0
_MAX_PROBE_S = 10.0


Watch = Callable[[Received], None]


class Api(StrEnum):
    """How questions are put."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Where they are sent."""
        return "completions" if self is Api.COMPLETIONS else "chat/completions"


def api_named(name: str) -> Api:
    """Return an API by its name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return Api(name)
    except ValueError:
        raise ConfigError(f"api: must be {' or '.join(Api)}, got {name!r}") from None


@dataclass(frozen=True, slots=True)
class Extras:
    """What a server has beyond OpenAI's least; each is used where it is there.

    Attributes:
        return_token_ids: answers have token ids.
        logprobs: answers have log-probabilities.
        ignore_eos: answers have as many tokens as were asked for.
        seed: the same seed gives the same answer.
        top_k: only so many tokens are drawn from.
        event_ids: events have ids, by which a stream that broke goes on.
    """

    return_token_ids: bool = False
    logprobs: bool = False
    ignore_eos: bool = False
    seed: bool = False
    top_k: bool = False
    event_ids: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers questions.

    Attributes:
        transport: to it.
        api: that is asked.
        model: by name.
        extras: that it has.
        timeout_s: longest that an answer may take.
    """

    transport: Transport
    api: Api
    model: str
    extras: Extras
    timeout_s: float

    def with_extras(self, **extras: bool) -> "Server":
        """Return the server, as one that has these extras alone."""
        return replace(self, extras=Extras(**extras))

    def body(self, question: Question) -> dict[str, Any]:
        """Return the request that asks a question."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "stream": True,
        }
        if self.api is Api.COMPLETIONS:
            body["prompt"] = question.prompt
        else:
            body["messages"] = [{"role": "user", "content": question.prompt}]
        if question.seed is not None:
            body |= {"seed": question.seed, "top_p": question.top_p}
        if question.top_k:
            body["top_k"] = question.top_k
        if self.extras.return_token_ids:
            body["return_token_ids"] = True
        if self.extras.ignore_eos:
            body["ignore_eos"] = True
        if self.extras.logprobs:
            body["logprobs"] = 1 if self.api is Api.COMPLETIONS else True
        return body

    async def receive(
        self,
        question: Question,
        received: Received,
        *,
        fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[None, None]:
        """Ask once and read the stream to its end; yields after each event.

        Args:
            question: to ask.
            received: takes the events.
            fields: of the body, beside those of the question.
            headers: of the request.

        Raises:
            AskError: the answer did not come to its end.
        """
        body = self.body(question) | dict(fields or {})
        # However a server cuts an answer into events, there are not many more of them than tokens.
        most = received.num_events + 8 * question.max_tokens + 64
        async with self.transport.events(self.api.path, body, headers or {}) as events:
            async for event in events:
                if received.take(event):
                    break
                yield
                most -= 1
                if most < received.num_events:
                    raise BrokenError(f"the stream has no end after {question.max_tokens} tokens")
        if not received.is_whole:
            raise BrokenError("the stream ended before its answer did")

    async def ask(self, question: Question, watch: Watch | None = None) -> Answer:
        """Ask until there is an answer; comes again where the server is too busy.

        Args:
            question: to ask.
            watch: is called after each event.

        Raises:
            AskError: there is none within the time.
        """
        async with within(self.timeout_s):
            while True:
                received = Received()
                try:
                    async with aclosing(self.receive(question, received)) as events:
                        async for _ in events:
                            if watch is not None:
                                watch(received)
                    return received.answer()
                except RefusedError as error:
                    if error.status not in LATER:
                        raise
                    await asyncio.sleep(min(error.retry_after_s or 0.2, _MAX_PAUSE_S))

    async def is_up(self) -> bool:
        """Return whether it lists its models."""
        try:
            async with within(min(self.timeout_s, _MAX_PROBE_S)):
                await self.transport.get("models")
        except AskError:
            return False
        return True


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """End what takes longer.

    Raises:
        TimedOutError: it did.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimedOutError(f"no end within {seconds:g} s") from None
