"""/v1/chat/completions: a conversation, and what the assistant says next."""

from contextlib import aclosing

from quire.contract.outputs import Started
from router.http.call import HttpCall
from router.http.chat.answers import StreamedChat, WholeChat
from router.http.chat.choices import ChatChoices
from router.http.chat.messages import Messages
from router.http.chat.opening import open_chat
from router.http.chat.request import read_request
from router.http.endpoint import Handle
from router.http.event_stream import EventStream
from router.requests.inference import Inference


def chat_completions(inference: Inference) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        with inference.refusals(call.caller):
            request = read_request(call.body)
            opened = await open_chat(inference, call, request.chat, request.is_stream)
        own = {
            "id": f"chatcmpl-{call.request_id}",
            "created": opened.created,
            "model": opened.model,
        }
        n = opened.chat.sampling_params.n
        choices = ChatChoices(n, request.top_logprobs, inference.token_bytes, request.tokens_as_ids)
        reader = inference.reader(opened.chat)
        messages = Messages(reader, request.shows_reasoning)

        async def run(answer: StreamedChat | WholeChat) -> None:
            sent, deadline_s = opened.sent, call.deadline_s
            async with aclosing(inference.events(sent, call.caller, deadline_s)) as events:
                async for event in events:
                    if isinstance(event, Started):
                        reader.begin(event.prompt_token_ids)
                    await answer.take(list(choices.take(event)))

        if request.is_stream:
            async with EventStream(call) as stream:
                ids = opened.event_ids()
                streamed = StreamedChat(own, request, choices, messages, ids, stream)
                await run(streamed)
                await streamed.end()
        else:
            whole = WholeChat(own, request, choices, messages)
            await run(whole)
            await call.answer(whole.content())

    return handle
