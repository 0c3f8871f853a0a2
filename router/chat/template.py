"""The model's chat template, rendered off the event loop and off this process."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.contract.chat import ChatInput
from quire.contract.errors import (
    ConfigError,
    InvalidRequestError,
    OverloadedError,
    QuireError,
    UnavailableError,
)
from router.chat.renderer import LENGTH, OUT_OF_MEMORY, encode
from router.chat.template_files import ChatTemplates, load_chat_templates
from router.chat.template_render import as_json, check_syntax

MAX_CPU_S = 1.0
MAX_MEMORY_BYTES = 2**29
NUM_PROCESSES = 2
RETRY_AFTER_MS = 1_000
# All that a renderer gets of the router's environment, which may hold keys.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


class ChatTemplate:
    """Turns conversations into prompts, in up to two processes that start when they are needed.

    A rendering takes less than a millisecond. One that does not end is killed with its process
    after MAX_CPU_S, and delays others only while both processes have one.
    """

    def __init__(
        self,
        templates: ChatTemplates,
        max_prompt_bytes: int,
        max_queued: int = 256,
        max_cpu_s: float = MAX_CPU_S,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        """Keep what renderers need; none is started yet.

        Args:
            templates: of the model.
            max_prompt_bytes: longest conversation and longest prompt, as UTF-8.
            max_queued: conversations that wait for or are in a process at once.
            max_cpu_s: processor time of a rendering, in seconds.
            max_memory_bytes: address space of a renderer.
        """
        self._templates = templates
        self._max_bytes = max_prompt_bytes
        self._max_queued = max_queued
        self._num_queued = 0
        settings = {
            "sources": dict(templates.sources),
            "special_tokens": dict(templates.special_tokens),
            "max_bytes": max_prompt_bytes,
            "max_cpu_s": max_cpu_s,
            "max_memory_bytes": max_memory_bytes,
        }
        self._renderers = [_Renderer(settings) for _ in range(NUM_PROCESSES)]
        self._idle: asyncio.LifoQueue[_Renderer] = asyncio.LifoQueue()
        for renderer in self._renderers:
            self._idle.put_nowait(renderer)
        self._tasks: set[asyncio.Task[str]] = set()

    @property
    def sources(self) -> Sequence[str]:
        """Texts of the templates."""
        return tuple(self._templates.sources.values())

    @classmethod
    async def load(
        cls, model: str, file: Path | None, max_prompt_bytes: int, max_queued: int = 256
    ) -> "ChatTemplate":
        """Read the templates of a model directory, off the event loop.

        Args:
            model: its directory, or a GGUF file.
            file: a template that takes the place of the model's.
            max_prompt_bytes: as for the constructor.
            max_queued: as for the constructor.

        Raises:
            ConfigError: `file` cannot be read, or is no template.
        """
        templates = await asyncio.to_thread(load_chat_templates, Path(model), file)
        if file is not None and (wrong := check_syntax(templates.source(False) or "")):
            raise ConfigError(f"chat_template: {file} must be a Jinja template, got {wrong}")
        return cls(templates, max_prompt_bytes, max_queued)

    @property
    def exists(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._templates.sources)

    async def render(self, chat: ChatInput) -> str:
        """Return the prompt of a conversation, in which special tokens are written out.

        Raises:
            InvalidRequestError: there is no template, it refuses the conversation, or it takes too
                long for it.
            OverloadedError: too many conversations wait.
        """
        template = self._template_name(bool(chat.tools) and chat.tool_choice != "none")
        _check(chat, self._max_bytes)
        if self._num_queued >= self._max_queued:
            raise OverloadedError(
                f"at most {self._max_queued} conversations wait for the chat template",
                RETRY_AFTER_MS,
            )
        message = encode({"template": template, **as_json(chat)})
        self._num_queued += 1
        task = asyncio.create_task(self._exchange(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A client that goes away leaves no answer in a pipe for the next one to read.
        return await asyncio.shield(task)

    def _template_name(self, has_tools: bool) -> str:
        names = self._templates.sources
        if has_tools and "tool_use" in names:
            return "tool_use"
        if "default" not in names:
            raise InvalidRequestError(
                "messages",
                "must be given as a prompt: the model has no chat template; give the router one "
                "with --chat-template",
            )
        return "default"

    async def _exchange(self, message: bytes) -> str:
        try:
            renderer = await self._idle.get()
            try:
                return await renderer.render(message)
            finally:
                self._idle.put_nowait(renderer)
        finally:
            self._num_queued -= 1

    async def close(self) -> None:
        """End the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for renderer in self._renderers:
            await renderer.stop()


class _Renderer:
    """One process, started for its first rendering, and again after it was killed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None

    async def render(self, message: bytes) -> str:
        try:
            if self._process is None or self._process.returncode is not None:
                await self._start()
            answer = await self._exchange(message)
        except (asyncio.IncompleteReadError, OSError):
            raise await self._reason_of_loss() from None
        except BaseException:
            await self.stop()  # an answer may be on its way
            raise
        if "text" in answer:
            return str(answer["text"])
        raise InvalidRequestError(answer["field"], answer["description"])

    async def _exchange(self, message: bytes) -> Any:
        process = self._process
        assert process and process.stdin and process.stdout, "it was started, with pipes"
        process.stdin.write(message)
        await process.stdin.drain()
        (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        return json.loads(await process.stdout.readexactly(size))

    async def _reason_of_loss(self) -> QuireError:
        """Its pipes are closed, so it is ending."""
        assert self._process is not None, "it was started"
        status, self._process = await self._process.wait(), None
        if status == -signal.SIGPROF:
            limit = f"{self._settings['max_cpu_s']:g} s of processor time"
        elif status == OUT_OF_MEMORY:
            limit = f"{self._settings['max_memory_bytes'] >> 20} MiB of memory"
        else:
            return UnavailableError(f"the chat template's process ended with status {status}")
        return InvalidRequestError("messages", f"must cost the chat template at most {limit}")

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "router.chat.renderer",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,  # a signal to the router's group is not for it
        )
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(encode(self._settings))

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):  # it has ended
            process.kill()
        await process.wait()


def _check(chat: ChatInput, max_bytes: int) -> None:
    """Bound a conversation before anything is made of it."""
    if not chat.messages:
        raise InvalidRequestError("messages", "at least 1 message, got 0")
    num_chars = len(chat.chat_template_kwargs)
    for message in chat.messages:
        texts = (message.role, message.content or "", message.name, message.reasoning)
        num_chars += sum(map(len, texts)) + len(message.tool_call_id)
        num_chars += sum(
            len(f"{call.name}{call.id}{call.arguments}") for call in message.tool_calls
        )
    for tool in chat.tools:
        num_chars += len(tool.name) + len(tool.description) + len(tool.parameters)
    if num_chars > max_bytes:
        raise InvalidRequestError(
            "messages", f"at most {max_bytes} characters with all they have, got {num_chars}"
        )
