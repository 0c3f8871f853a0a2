"""How conversations over HTTP begin, or are asked for again where their stream broke."""

import uuid
from dataclasses import dataclass, replace

from quire.contract.chat import ChatInput
from quire.contract.inputs import ReplayInput
from router.http.call import HttpCall
from router.http.event_stream import while_waiting
from router.http.resume import EventIds, read_created, read_resumption, replay_of
from router.requests.inference import Inference


@dataclass(frozen=True, slots=True)
class OpenChat:
    """A conversation that is about to be answered.

    Attributes:
        chat: with its id and its time, sent so that its outputs can be read.
        sent: what is computed: the chat, or what its client lacks of it.
        created: when, in seconds since the epoch.
        model: its name.
        received: of each choice, how many events the client has.
    """

    chat: ChatInput
    sent: ChatInput | ReplayInput
    created: int
    model: str
    received: tuple[int, ...] = ()

    def event_ids(self) -> EventIds:
        """Return what numbers the events of its stream."""
        return EventIds(self.chat.sampling_params.n, self.received)


async def open_chat(
    inference: Inference, call: HttpCall, chat: ChatInput, is_stream: bool
) -> OpenChat:
    """Return what a call asks for; its body is forgotten.

    Args:
        inference: that will answer.
        call: with the headers, and a body of which nothing else is needed than `resume`.
        chat: of the body.
        is_stream: whether the answer is one.

    Raises:
        QuireError: what is to be resumed is malformed, or cannot be.
    """
    resumption = read_resumption(call, chat.sampling_params.n, is_stream)
    request_id = resumption.request_id if resumption else call.request_id
    call.request_id = request_id or uuid.uuid4().hex
    created = read_created(call.body.fields("resume"), "created")
    # The time that a template asks for is part of its prompt: with `created` it is known.
    chat = inference.readable(replace(chat, request_id=call.request_id, now=created))
    async with while_waiting(call, is_stream):
        model = (await inference.find_model(chat.model)).name
        sent: ChatInput | ReplayInput = chat
        if resumption is not None:
            plain = await inference.generate_input(chat)
            sent = await replay_of(inference, call, plain, resumption)
    # Only now: while it waits for a cell, what it holds counts among what all may.
    call.forget_body()
    return OpenChat(chat, sent, created, model, resumption.received if resumption else ())
