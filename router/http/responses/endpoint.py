"""/v1/responses: an answer to items of input, and a stream of it that a client can come back to."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import Event, Started
from router.http.call import HttpCall, to_json
from router.http.chat.choices import ChatChoices, Part
from router.http.endpoint import Handle
from router.http.errors import HttpError
from router.http.event_stream import EventStream
from router.http.responses.events import FIRST_TOKEN, ResponseState
from router.http.responses.held import HeldResponse, HeldResponses
from router.http.responses.request import ID_PREFIX, read_request
from router.requests.inference import Inference


def create(inference: Inference, held: HeldResponses) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        call.request_id = call.request_id or uuid.uuid4().hex
        with inference.refusals(call.caller):
            request = read_request(call.body, call.request_id)
        if request.is_resumed and (response := held.find_same(request, call.caller.name)):
            await _go_on(inference, held, call, response, request.starting_after)
            return
        chat, now = request.chat, request.now
        model = chat.model or next((each.name for each in inference.models()), "")
        created_at = int(time.time()) if now is None else now
        state = ResponseState(chat.request_id, model, created_at, request.own)
        choices = ChatChoices(1, request.top_logprobs)
        response = HeldResponse(request, call.caller.name, state)
        events = inference.events(chat, call.caller, call.deadline_s, now=now)
        if request.is_stream:
            await _stream(call, response, held, choices, events, request.starting_after)
            return
        end: Part | None = None
        async with aclosing(events):
            async for event in events:
                for part in _parts(state, choices, event):
                    end = part
                    for _ in state.events(part):
                        pass  # they are told whole
        assert end is not None, "its request has come to its end"
        await call.answer(state.content(end.end))

    return handle


def retrieve(inference: Inference, held: HeldResponses) -> Handle:
    """Return what goes on with streams, after the event that their clients received last."""

    async def handle(call: HttpCall) -> None:
        response_id = call.path_params["response_id"]
        request_id = response_id.removeprefix(ID_PREFIX)
        response = held.find(request_id, call.caller.name)
        if response is None or response.state.started is None:
            raise HttpError(
                HTTPStatus.NOT_FOUND,
                "response_id: is not held here, or not any more; POST its request again with "
                "resume {id, seed, starting_after, created_at}",
            )
        if call.query.get("stream", "true").lower() not in ("true", "1"):
            raise InvalidRequestError("stream", "must be true: no response is stored")
        after = _starting_after(call.query.get("starting_after", "-1"))
        await _go_on(inference, held, call, response, after)

    return handle


async def _go_on(
    inference: Inference, held: HeldResponses, call: HttpCall, response: HeldResponse, after: int
) -> None:
    """Send what follows an event: from memory where the request still runs, else computed again."""
    num_tokens = min(max(0, after + 1 - FIRST_TOKEN), len(response.parts))
    received = response.parts[:num_tokens]
    resumed = response.resumed(num_tokens)
    old = response.state
    state = ResponseState(old.request_id, old.model, old.created_at, old.own)
    choices = ChatChoices(1, response.request.top_logprobs)
    newer = replace(response, state=state, parts=[], logprobs=[])
    events = inference.events(resumed, call.caller, call.deadline_s)
    await _stream(call, newer, held, choices, events, after, received)


async def _stream(
    call: HttpCall,
    response: HeldResponse,
    held: HeldResponses,
    choices: ChatChoices,
    events: AsyncGenerator[Event, None],
    after: int,
    received: Sequence[Part] = (),
) -> None:
    """Send the events of a response that follow one.

    Args:
        call: to answer.
        response: to be held where its client may come back.
        held: where.
        choices: makes parts of events.
        events: of the request; after its start, of the tokens behind `received`.
        after: number of the last event that the client has.
        received: tokens that the client has.
    """
    state = response.state
    async with EventStream(call) as stream, aclosing(events):
        try:
            async for event in events:
                parts = _parts(state, choices, event)
                if isinstance(event, Started):
                    parts += received
                    if response.request.chat.resumable:
                        held.put(response)
                held.add(response, parts)
                await stream.write(
                    b"".join(
                        b"event: %b\nid: %d\ndata: %b\n\n"
                        % (sent["type"].encode(), sent["sequence_number"], to_json(sent))
                        for part in parts
                        for sent in state.events(part)
                        if sent["sequence_number"] > after
                    )
                )
            await stream.end()
        finally:
            held.left(response)


def _parts(state: ResponseState, choices: ChatChoices, event: Event) -> list[Part]:
    if isinstance(event, Started):
        state.started = event
    return list(choices.take(event))


def _starting_after(text: str) -> int:
    try:
        number = int(text[:16])
    except ValueError:
        number = -2
    if number < -1:
        raise InvalidRequestError("starting_after", "must be an integer of 0 or more")
    return number
