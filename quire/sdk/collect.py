"""Puts the events of a Generate stream together."""

from collections.abc import AsyncIterable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.contract.chat import ToolCall
from quire.contract.errors import UnavailableError
from quire.contract.outputs import (
    Completion,
    Delta,
    Event,
    Finished,
    ParsedOutput,
    Started,
    TokenLogprobs,
    ToolCallDelta,
)
from quire.contract.time_breakdown import TimeBreakdown


@dataclass(slots=True)
class _Parts:
    """Of one output, so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finished: Finished | None = None
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)

    def parse(self, parsed: ParsedOutput | None) -> None:
        """Take what the next text means."""
        if parsed is not None:
            self.reasoning.append(parsed.reasoning)
            self.content.append(parsed.content)
            self.calls.extend(parsed.tool_calls)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls so far."""
        names: dict[int, ToolCallDelta] = {}
        arguments: dict[int, list[str]] = {}
        for call in self.calls:
            names.setdefault(call.index, call)
            arguments.setdefault(call.index, []).append(call.arguments)
        return tuple(
            ToolCall(first.name, "".join(arguments[index]), first.id)
            for index, first in sorted(names.items())
        )


class Collector:
    """Takes events in their order and collects them into `completions`.

    Args:
        is_parsed: events report what their text means.
    """

    def __init__(self, is_parsed: bool = False) -> None:
        self._is_parsed = is_parsed
        self._started: Started | None = None
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._parts: dict[int, _Parts] = {}
        self._time_breakdown: TimeBreakdown | None = None

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Started():
                self._started = event
            case Delta():
                self._prompt_logprobs.extend(event.prompt_logprobs)
                if event.text or event.token_ids:
                    parts = self._parts.setdefault(event.index, _Parts())
                    parts.text.append(event.text)
                    parts.token_ids.extend(event.token_ids)
                    parts.logprobs.extend(event.logprobs)
                    parts.parse(event.parsed)
            case Finished():
                parts = self._parts.setdefault(event.index, _Parts())
                parts.finished = event
                parts.parse(event.parsed)
                self._time_breakdown = event.time_breakdown or self._time_breakdown

    def completions(self) -> list[Completion]:
        """Return the outputs, by index.

        Raises:
            UnavailableError: the stream ended before its outputs did.
        """
        if self._started is None or not self._parts:
            raise UnavailableError("the router ended the stream early")
        completions = []
        for index, parts in sorted(self._parts.items()):
            finished = parts.finished
            if finished is None:
                raise UnavailableError("the router ended the stream early")
            completions.append(
                Completion(
                    request_id=self._started.request_id,
                    text="".join(parts.text),
                    token_ids=tuple(parts.token_ids),
                    finish_reason=finished.finish_reason,
                    num_prompt_tokens=self._started.num_prompt_tokens,
                    seed=self._started.seed,
                    stop_str=finished.stop_str,
                    logprobs=tuple(parts.logprobs),
                    index=index,
                    cumulative_logprob=finished.cumulative_logprob,
                    prompt_logprobs=tuple(self._prompt_logprobs),
                    time_breakdown=self._time_breakdown,
                    num_cached_tokens=finished.num_cached_tokens,
                    numerics_id=self._started.numerics_id,
                    text_id=self._started.text_id,
                    prompt_token_ids=tuple(self._started.prompt_token_ids),
                    content="".join(parts.content) if self._is_parsed else None,
                    reasoning="".join(parts.reasoning),
                    tool_calls=parts.tool_calls(),
                )
            )
        return completions


async def collected(events: AsyncIterable[Event], collector: Collector) -> list[Completion]:
    """Return the whole answers that events bring.

    Args:
        events: of one stream.
        collector: takes them.
    """
    async for event in events:
        collector.add(event)
    return collector.completions()


async def first_of(completions: Coroutine[Any, Any, Sequence[Completion]]) -> Completion:
    """Return the first of the answers that are awaited."""
    return (await completions)[0]
