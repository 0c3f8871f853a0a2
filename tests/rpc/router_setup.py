"""A router in this process, between fake schedulers and a client."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from quire import AsyncClient
from quire.contract.errors import DeadlineExceededError
from quire.contract.outputs import Event
from router.chat.template import ChatTemplate
from router.chat.template_files import ChatTemplates
from router.config import RouterConfig
from router.server import Router
from router.text.tokenize import Tokenizer
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.fakes.small_tokenizers import byte_level

BACKEND = byte_level()
TEXT_ID = "7e47"
PROMPT = "The list class has methods 中文 😀 to sort"
PROMPT_IDS = tuple(BACKEND.encode(PROMPT).ids)


@dataclass
class Setup:
    """What a test talks to."""

    fake: FakeScheduler
    client: AsyncClient
    address: str
    scheduler: str
    router: Router


@asynccontextmanager
async def router_for(
    directory: Path,
    schedulers: tuple[str, ...],
    chat_template: str = "",
    backend: Backend = BACKEND,
    **settings: object,
) -> AsyncIterator[tuple[Router, AsyncClient, str]]:
    """A router of these schedulers, a client of it, and its address."""
    sources = {"default": chat_template} if chat_template else {}
    config = RouterConfig(
        model=str(directory),
        schedulers=schedulers,
        **{"port": 0, **settings},
    )
    async with AsyncExitStack() as stack:
        router = Router(
            config,
            Tokenizer(backend, num_threads=1, text_id=TEXT_ID),
            ChatTemplate(ChatTemplates(sources), config.max_prompt_bytes),
        )
        address = await router.start()
        stack.push_async_callback(router.stop)
        client = await stack.enter_async_context(AsyncClient(address, resume_timeout=0.0))
        yield router, client, address


@asynccontextmanager
async def running_router(
    directory: Path, fake: FakeScheduler | None = None, **settings: object
) -> AsyncIterator[Setup]:
    """A router connected to one fake scheduler, and a client of it."""
    fake = fake or FakeScheduler()
    async with (
        running_scheduler(fake) as scheduler,
        router_for(directory, (scheduler,), **settings) as (router, client, address),
    ):
        await router.wait_until_serving()
        yield Setup(fake, client, address, scheduler, router)


async def until_late(fake: FakeScheduler, call: Callable[[float], Awaitable[object]]) -> None:
    """Call until a deadline passes in the scheduler: a busy machine gets no short one there."""
    timeout_s, num_submitted = 0.2, len(fake.submitted)
    while len(fake.submitted) == num_submitted:
        with pytest.raises(DeadlineExceededError):
            await call(timeout_s)
        timeout_s *= 2


async def read_all(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream]


def echoed(count: int, prompt: tuple[int, ...] = PROMPT_IDS) -> tuple[int, ...]:
    """Return the tokens of the fake's answer."""
    return tuple(prompt[i % len(prompt)] for i in range(count))


def text_of(token_ids: tuple[int, ...]) -> str:
    return BACKEND.decode(list(token_ids))
