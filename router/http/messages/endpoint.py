"""/v1/messages: a conversation in Anthropic's shape, and what the assistant answers."""

from contextlib import aclosing

from starlette.datastructures import Headers

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import Started
from router.http.call import HttpCall, to_json
from router.http.chat.choices import ChatChoices
from router.http.chat.opening import open_chat
from router.http.endpoint import Handle
from router.http.event_stream import EventStream, event_bytes
from router.http.messages.answers import PING, MessageAnswer
from router.http.messages.request import read_chat, read_request
from router.requests.inference import Inference

_VERSION = "anthropic-version"
# Before it streams had other events; what came after it changes no field that is read here.
_OLDEST_VERSION = "2023-06-01"


def create(inference: Inference) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        with inference.refusals(call.caller):
            _check_version(call.headers)
            request = read_request(call.body)
            opened = await open_chat(inference, call, request.chat, request.is_stream)
        choices = ChatChoices(1)
        reader = inference.reader(opened.chat)
        answer = MessageAnswer(opened, request, choices, reader)
        events = inference.events(opened.sent, call.caller, call.deadline_s)
        if request.is_stream:
            ids = opened.event_ids()
            async with EventStream(call, PING) as stream, aclosing(events):
                async for event in events:
                    if isinstance(event, Started):
                        reader.begin(event.prompt_token_ids)
                    await stream.write(
                        b"".join(
                            event_bytes(to_json(sent), event_id, sent["type"])
                            for part in choices.take(event)
                            for sent in answer.events(part)
                            if (event_id := ids.next(0)) is not None
                        )
                    )
                await stream.end()
            return
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Started):
                    reader.begin(event.prompt_token_ids)
                for part in choices.take(event):
                    for _ in answer.events(part):
                        pass  # they are returned whole
        await call.answer(answer.message())

    return handle


def count_tokens(inference: Inference) -> Handle:
    """Return what counts the tokens of a prompt."""

    async def handle(call: HttpCall) -> None:
        _check_version(call.headers)
        token_ids = await inference.prompt_ids(read_chat(call.body))
        await call.answer({"input_tokens": len(token_ids)})

    return handle


def _check_version(headers: Headers) -> None:
    version = headers.get(_VERSION, _OLDEST_VERSION)
    if version < _OLDEST_VERSION:  # as dates they are ordered
        raise InvalidRequestError(
            _VERSION, f"must be {_OLDEST_VERSION} or later, got {version[:32]!r}"
        )
