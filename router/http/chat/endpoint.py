"""/v1/chat/completions: a conversation, and what the assistant says next."""

import time
import uuid
from contextlib import aclosing
from dataclasses import replace

from quire.contract.chat import ChatInput
from quire.contract.inputs import ReplayInput
from router.http.call import HttpCall
from router.http.chat.answers import StreamedChat, WholeChat
from router.http.chat.choices import ChatChoices
from router.http.chat.messages import Messages, with_special_tokens
from router.http.chat.request import read_request
from router.http.endpoint import Handle
from router.http.event_stream import EventStream
from router.http.resume import EventIds, read_resumption, replay_of
from router.requests.inference import Inference


def chat_completions(inference: Inference) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        with inference.refusals(call.caller):
            request = read_request(call.body)
            num_choices = request.chat.sampling_params.n
            resumption = read_resumption(call, num_choices) if request.is_stream else None
            request_id = resumption.request_id if resumption else call.request_id
            call.request_id = request_id or uuid.uuid4().hex
            created = int(time.time())
            if resumption is not None:
                created = call.body.fields("resume").integer("created", created) or 0
            call.forget_body()
            # The time that a template asks for is part of its prompt: with `created` it is known.
            chat = replace(request.chat, request_id=call.request_id, now=created)
            chat = with_special_tokens(chat, inference.output_format.of(chat))
            sent: ChatInput | ReplayInput = chat
            if resumption is not None:
                plain = await inference.generate_input(chat)
                sent = replay_of(inference, call, plain, resumption)
        model = chat.model or next((each.name for each in inference.models()), "")
        own = {"id": f"chatcmpl-{call.request_id}", "created": created, "model": model}
        choices = ChatChoices(num_choices, request.top_logprobs)
        messages = Messages(inference, chat)

        async def run(answer: StreamedChat | WholeChat) -> None:
            async with aclosing(inference.events(sent, call.caller, call.deadline_s)) as events:
                async for event in events:
                    await answer.take(list(choices.take(event)))

        if request.is_stream:
            async with EventStream(call) as stream:
                ids = EventIds(num_choices, resumption.received if resumption else ())
                streamed = StreamedChat(own, request, choices, messages, ids, stream)
                await run(streamed)
                await streamed.end()
        else:
            whole = WholeChat(own, request, choices, messages)
            await run(whole)
            await call.answer(whole.content())

    return handle
