"""Chats whose events report what their text means: read once more where they are resumed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from quire.contract.chat import ChatInput
from quire.contract.inputs import ReceivedOutput
from quire.contract.outputs import Delta, Event, Finished, ParsedOutput, Started
from router.chat.reader import OutputReader, parsed_output
from router.requests.resume import TOKENS_AT_ONCE
from router.text.detokenize import Detokenizer

# So that other streams go on meanwhile.
CHARS_AT_ONCE = 4096


class EventParser:
    """Adds to the events of a chat what their text means.

    Args:
        chat: as it is sent.
        make_reader: of its outputs, once it has the id of its request.
        make_detokenizer: of an output, after the tokens of the prompt.
        received: what the client has of outputs from earlier streams, and has been parsed then.
    """

    def __init__(
        self,
        chat: ChatInput,
        make_reader: Callable[[ChatInput], OutputReader],
        make_detokenizer: Callable[[Sequence[int]], Detokenizer],
        received: Sequence[ReceivedOutput] = (),
    ) -> None:
        self._chat = chat
        self._make_reader = make_reader
        self._make_detokenizer = make_detokenizer
        self._received = received
        self._reader: OutputReader

    async def take(self, event: Event) -> Event:
        """Return an event with what it means; each is taken once, in its order."""
        match event:
            case Started():
                await self._start(event)
                return event
            case Delta():
                read = self._reader.read(event.index, event.text, event.token_ids)
            case Finished():
                read = self._reader.read(event.index, "", end=event.finish_reason)
        parsed = parsed_output(read)
        return replace(event, parsed=None if parsed == ParsedOutput() else parsed)

    async def _start(self, started: Started) -> None:
        prompt = started.prompt_token_ids
        self._reader = self._make_reader(replace(self._chat, request_id=started.request_id))
        self._reader.begin(prompt)
        for output in self._received:
            if not output.ended:
                text = await _text(output, self._make_detokenizer(prompt))
                # What a client claims to have may be long, and has a meaning only it has chosen.
                place = 0
                while len(text) - place > 2 * CHARS_AT_ONCE:
                    self._reader.read(output.index, text[place : place + CHARS_AT_ONCE])
                    place += CHARS_AT_ONCE
                    await asyncio.sleep(0)
                # The end, with the text of its last token whole: that may be one that ends texts.
                self._reader.read(output.index, text[place:], output.token_ids)


async def _text(received: ReceivedOutput, detokenizer: Detokenizer) -> str:
    """Return the text that a client has: of its tokens, as far as it came."""
    pieces = []
    for place, token_id in enumerate(received.token_ids, 1):
        pieces.append(detokenizer.push(token_id))
        if place % TOKENS_AT_ONCE == 0:
            await asyncio.sleep(0)
    text = "".join((*pieces, detokenizer.flush()))
    # Whether a character ends there is checked where the stream goes on.
    return text.encode()[: received.num_text_bytes].decode(errors="ignore")
