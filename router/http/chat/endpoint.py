"""/v1/chat/completions: a conversation, and what the assistant says next."""

import time
import uuid
from contextlib import aclosing

from router.http.call import HttpCall
from router.http.chat.answers import StreamedChat, WholeChat
from router.http.chat.choices import ChatChoices
from router.http.chat.request import read_request
from router.http.endpoint import Handle
from router.http.event_stream import EventStream
from router.requests.inference import Inference


def chat_completions(inference: Inference) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        call.request_id = call.request_id or uuid.uuid4().hex
        with inference.refusals(call.caller):
            request = read_request(call.body, call.request_id)
        chat = request.chat
        model = chat.model or next((each.name for each in inference.models()), "")
        own = {"id": f"chatcmpl-{call.request_id}", "created": int(time.time()), "model": model}
        choices = ChatChoices(chat.sampling_params.n, request.top_logprobs)

        async def run(answer: StreamedChat | WholeChat) -> None:
            async with aclosing(inference.events(chat, call.caller, call.deadline_s)) as events:
                async for event in events:
                    await answer.take(list(choices.take(event)))

        if request.is_stream:
            async with EventStream(call) as stream:
                streamed = StreamedChat(own, request, choices, stream)
                await run(streamed)
                await streamed.end()
        else:
            whole = WholeChat(own, request, choices)
            await run(whole)
            await call.answer(whole.content())

    return handle
