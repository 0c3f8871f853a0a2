"""The usage in each event: of the tokens up to it, whatever came beside them."""

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started
from router.chat.parsers.formats import OutputFormat
from router.chat.reader import OutputReader
from router.http.chat import request as chats
from router.http.chat.answers import StreamedChat
from router.http.chat.choices import ChatChoices
from router.http.chat.messages import Messages
from router.http.completions import request as completions
from router.http.completions.answers import StreamedAnswer
from router.http.completions.choices import PromptChoices
from router.http.event_stream import EventStream
from router.http.fields import Fields
from router.http.resume import EventIds

ASKED = {
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
NUM_CACHED = 4
ENDS = [
    Finished(FinishReason.LENGTH, 3, index=index, num_cached_tokens=NUM_CACHED) for index in (0, 1)
]
TOGETHER = [
    Delta("abc", (5, 6, 7), (), index, (), ("a", "b", "c"), num_cached_tokens=NUM_CACHED)
    for index in (0, 1)
]
IN_TURN = [
    Delta(text, (token_id,), (), index, (), (text,), num_cached_tokens=NUM_CACHED)
    for token_id, text in ((5, "a"), (6, "b"), (7, "c"))
    for index in (1, 0)
]


class Written:
    """A stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.content = b""

    async def write(self, content: bytes) -> None:
        self.content += content

    end = write

    @property
    def usages(self) -> dict[int | None, list[tuple[int, int, int]]]:
        """Prompt's, output's and all tokens of the events of each choice; None for none."""
        found: dict[int | None, list[tuple[int, int, int]]] = {}
        for line in self.content.decode().splitlines():
            if line.startswith("data: {"):
                data = json.loads(line.removeprefix("data: "))
                index = data["choices"][0]["index"] if data["choices"] else None
                usage = data["usage"]
                # Not known before the first token.
                known = NUM_CACHED if usage["completion_tokens"] else 0
                num_cached = usage.pop("prompt_tokens_details")["cached_tokens"]
                assert num_cached in (known, NUM_CACHED)
                found.setdefault(index, []).append(tuple(usage.values()))
        return found


async def chat_usages(events: Sequence[Event], received: Sequence[int]) -> dict[int | None, Any]:
    request = chats.read_request(Fields({**ASKED, "messages": [{"role": "user", "content": "x"}]}))
    choices, written = ChatChoices(2), Written()
    reader = OutputReader(OutputFormat(), request.chat, str, ())
    stream, ids = cast(EventStream, written), EventIds(2, received)
    answer = StreamedChat({}, request, choices, Messages(reader), ids, stream)
    for event in (Started("id", 9, 1), *events):
        await answer.take(list(choices.take(event)))
    await answer.end()
    return written.usages


async def completion_usages(
    events: Sequence[Event], received: Sequence[int]
) -> dict[int | None, Any]:
    request = completions.read_request(Fields({**ASKED, "prompt": "x"}))
    choices, written = PromptChoices(request, 0), Written()
    stream, ids = cast(EventStream, written), EventIds(2, received)
    answer = StreamedAnswer({}, request, [choices], ids, stream)
    for event in (Started("id", 9, 1), *events):
        await answer.take(choices, list(choices.take(event)))
    await answer.end()
    return written.usages


@pytest.mark.parametrize("deltas", [TOGETHER, IN_TURN], ids=["together", "in turn"])
@pytest.mark.parametrize("usages", [chat_usages, completion_usages])
async def test_the_usage_in_an_event_is_of_its_choice_up_to_it(usages, deltas) -> None:
    numbers = [0, 1, 2, 3, 3] if usages is chat_usages else [1, 2, 3, 3]
    each = [(9, number, 9 + number) for number in numbers]
    last = [(9, 6, 15)]
    events = [*deltas, *ENDS]
    assert await usages(events, ()) == {0: each, 1: each, None: last}
    # And so where a stream goes on that broke.
    assert await usages(events, (2, 1)) == {0: each[2:], 1: each[1:], None: last}
