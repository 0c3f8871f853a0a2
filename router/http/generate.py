"""/generate, as the server of vLLM's first releases had it: prompt and outputs as one text."""

import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus

from quire.contract.inputs import GenerateInput, TokenizeInput
from quire.contract.outputs import Delta, Event, Finished
from router.http.call import HttpCall, to_json
from router.http.completions.request import DEFAULT_MAX_TOKENS
from router.http.endpoint import Handle
from router.http.sampling import check_served, read_sampling_params
from router.requests.inference import Inference

# Behind each part of a stream.
END = b"\0"


def generate(inference: Inference) -> Handle:
    """Return what answers requests: `prompt`, `stream`, and sampling parameters beside them."""

    async def handle(call: HttpCall) -> None:
        with inference.refusals(call.caller):
            body = call.body
            check_served(body)
            max_tokens = body.integer("max_tokens", DEFAULT_MAX_TOKENS)
            params = read_sampling_params(
                body, max_tokens=max_tokens, logprobs=None, prompt_logprobs=None
            )
            prompt, is_stream = body.text("prompt"), body.boolean("stream")
            call.request_id = call.request_id or uuid.uuid4().hex
            request = GenerateInput(
                prompt,
                params,
                call.request_id,
                body.text("model"),
                body.integer("priority", 0) or 0,
                body.text("cache_salt"),
            )
            if prompt and not body.boolean("add_special_tokens", True):
                text = TokenizeInput(prompt, request.model, add_special_tokens=False)
                ids = await inference.tokenize_in_turn(text, "prompt")
                request = replace(request, prompt=ids)
            call.forget_body()
        texts = [prompt] * params.n
        async with aclosing(inference.events(request, call.caller, call.deadline_s)) as events:
            async for event in events:
                if not is_stream:
                    _take(texts, event)
                    continue
                if call.status is None:
                    await call.begin(HTTPStatus.OK, {"content-type": "text/plain; charset=utf-8"})
                if _take(texts, event):
                    await call.write(_content(texts) + END)
        if is_stream:
            await call.write(b"", is_last=True)
        else:
            await call.answer({"text": texts})

    return handle


def _take(texts: list[str], event: Event) -> bool:
    """Add what an event brings to the texts; return whether it belongs to an output.

    Raises:
        QuireError: an output failed.
    """
    if not isinstance(event, Delta | Finished):
        return False
    if isinstance(event, Finished) and (error := event.finish_reason.error) is not None:
        raise error
    if isinstance(event, Delta):
        texts[event.index] += event.text
    return True


def _content(texts: Sequence[str]) -> bytes:
    return to_json({"text": list(texts)})
