"""The model's chat template, rendered off the event loop and off this process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from quire.contract.chat import ChatInput
from quire.contract.errors import InvalidRequestError
from router.chat.template_files import ChatTemplates, load_checked
from router.chat.template_render import as_json
from router.sandbox.processes import LimitReachedError, Limits, Sandbox

MAX_CPU_S = 1.0
MAX_MEMORY_BYTES = 2**29


class ChatTemplate:
    """Turns conversations into prompts, in a sandbox. A rendering takes less than a millisecond."""

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
        settings = {
            "sources": dict(templates.sources),
            "special_tokens": dict(templates.special_tokens),
            "max_bytes": max_prompt_bytes,
        }
        self._sandbox = Sandbox(
            "router.chat.renderer",
            lambda: settings,
            Limits(max_cpu_s, max_memory_bytes),
            max_queued,
            "the chat template",
        )

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
        templates = await asyncio.to_thread(load_checked, Path(model), file)
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
        try:
            answer = await self._sandbox.ask({"template": template, **as_json(chat)})
        except LimitReachedError as error:
            raise InvalidRequestError(
                "messages", f"must cost the chat template at most {error}"
            ) from None
        return str(answer["text"])

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

    async def close(self) -> None:
        """End the processes."""
        await self._sandbox.close()


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
