"""/v1/responses: an answer to items of input, and a stream of it that a client can come back to."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus

from quire.contract.chat import ChatInput
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import ReplayInput
from quire.contract.outputs import Event, Started
from router.http.call import HttpCall, to_json
from router.http.chat.choices import ChatChoices, Part
from router.http.endpoint import Handle
from router.http.errors import HttpError
from router.http.event_stream import EventStream, event_bytes, while_waiting
from router.http.responses.events import ResponseState
from router.http.responses.held import HeldResponse, HeldResponses
from router.http.responses.request import ID_PREFIX, read_request
from router.http.resume import replay_of
from router.requests.inference import Inference


def create(inference: Inference, held: HeldResponses) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        call.request_id = call.request_id or uuid.uuid4().hex
        with inference.refusals(call.caller):
            request = read_request(call.body, call.request_id)
            call.request_id = request.chat.request_id  # that of a stream which goes on
            chat = inference.readable(request.chat)
            request = replace(request, chat=chat)
            sent: ChatInput | ReplayInput = chat
            async with while_waiting(call, request.is_stream):
                if request.resumption is not None:
                    plain = await inference.generate_input(chat)
                    sent = await replay_of(inference, call, plain, request.resumption)
                model = (await inference.find_model(chat.model)).name
            call.forget_body()
        assert chat.now is not None, "when it was created"
        reader = inference.reader(chat)
        state = ResponseState(chat.request_id, model, chat.now, request.own, reader)
        choices = ChatChoices(1, request.top_logprobs, inference.token_bytes)
        response = HeldResponse(request, call.caller.name, state)
        events = inference.events(sent, call.caller, call.deadline_s)
        if request.is_stream:
            await _stream(call, response, held, choices, events, request.starting_after)
            return
        end: Part | None = None
        async with aclosing(events):
            async for event in events:
                for part in _parts(state, choices, event):
                    end = part
                    for _ in state.events(part):
                        pass  # they are returned whole
        assert end is not None, "its request has come to its end"
        await call.answer(state.content(end.end))

    return handle


def input_tokens(inference: Inference) -> Handle:
    """Return what counts the tokens of a prompt."""

    async def handle(call: HttpCall) -> None:
        chat = read_request(call.body, uuid.uuid4().hex).chat
        token_ids = await inference.prompt_ids(chat)
        await call.answer({"object": "response.input_tokens", "input_tokens": len(token_ids)})

    return handle


def retrieve(inference: Inference, held: HeldResponses) -> Handle:
    """Return what goes on with streams, after the event that their clients received last."""

    async def handle(call: HttpCall) -> None:
        response = _find(held, call)
        call.request_id = response.state.request_id
        if call.query.get("stream", "true").lower() not in ("true", "1"):
            raise InvalidRequestError("stream", "must be true: no response is stored")
        after = _starting_after(call.query.get("starting_after", "-1"))
        old, reader = response.state, inference.reader(response.request.chat)
        state = ResponseState(old.request_id, old.model, old.created_at, old.own, reader)
        choices = ChatChoices(1, response.request.top_logprobs, inference.token_bytes)
        events = inference.events(response.replay(), call.caller, call.deadline_s)
        await _stream(call, replace(response, state=state), held, choices, events, after)

    return handle


def cancel(inference: Inference, held: HeldResponses) -> Handle:
    """Return what ends responses that would run on without their clients."""

    async def handle(call: HttpCall) -> None:
        state = _find(held, call).state
        call.request_id = state.request_id
        inference.abort(state.request_id, call.caller)
        held.drop(state.request_id)  # or it would be computed again for who asks for it
        await call.answer({**state.content(), "status": "cancelled"})

    return handle


def _find(held: HeldResponses, call: HttpCall) -> HeldResponse:
    request_id = call.path_params["response_id"].removeprefix(ID_PREFIX)
    response = held.find(request_id, call.caller.name)
    if response is None:
        raise HttpError(
            HTTPStatus.NOT_FOUND,
            "response_id: is not held here, or not any more; POST its request again with "
            "resume {id, seed, starting_after, created_at}",
        )
    return response


async def _stream(
    call: HttpCall,
    response: HeldResponse,
    held: HeldResponses,
    choices: ChatChoices,
    events: AsyncGenerator[Event, None],
    after: int,
) -> None:
    """Send the events of a response that follow one.

    Args:
        call: to answer.
        response: to be held where its client may come back.
        held: where.
        choices: makes parts of events.
        events: of the request, from its start on.
        after: number of the last event that the client has.
    """
    state = response.state
    async with EventStream(call) as stream, aclosing(events):
        try:
            async for event in events:
                parts = _parts(state, choices, event)
                if isinstance(event, Started) and response.request.chat.resumable:
                    held.put(response)
                await stream.write(
                    b"".join(
                        event_bytes(to_json(sent), str(sent["sequence_number"]), sent["type"])
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
        state.start(event)
    return list(choices.take(event))


def _starting_after(text: str) -> int:
    try:
        number = int(text[:16])
    except ValueError:
        number = -2
    if number < -1:
        raise InvalidRequestError("starting_after", "must be an integer of 0 or more")
    return number
