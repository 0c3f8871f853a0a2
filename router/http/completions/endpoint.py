"""/v1/completions: a prompt, or several, and what a model makes of them."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from quire.contract.inputs import DetokenizeInput, GenerateInput, ReplayInput, TokenizeInput
from router.http.call import HttpCall
from router.http.completions.answers import StreamedAnswer, WholeAnswer
from router.http.completions.choices import Part, PromptChoices
from router.http.completions.request import CompletionRequest, read_request
from router.http.endpoint import Handle
from router.http.event_stream import EventStream, while_waiting
from router.http.resume import EventIds, Resumption, read_resumption, replay_of
from router.requests.inference import Inference
from router.requests.patience import Begins, Patience

Sink = Callable[[PromptChoices, Sequence[Part]], Awaitable[None]]


def completions(inference: Inference) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        with inference.refusals(call.caller):
            request = read_request(call.body)
            num_choices = len(request.inputs) * request.n
            resumption = read_resumption(call, num_choices, request.is_stream)
            request_id = resumption.request_id if resumption else call.request_id
            call.request_id = request_id or uuid.uuid4().hex
            request = _infilled(inference, request.with_id(call.request_id))
            request = await _tokenized(inference, request)
            sent: list[GenerateInput | ReplayInput] = list(request.inputs)
            async with while_waiting(call, request.is_stream):
                if resumption is not None:
                    sent = [
                        await _resumed(inference, call, request, place, resumption)
                        for place in range(len(sent))
                    ]
                model = (await inference.find_model(request.inputs[0].model)).name
            call.forget_body()
        own = {"id": f"cmpl-{call.request_id}", "created": int(time.time()), "model": model}
        prompts = [PromptChoices(request, place) for place in range(len(request.inputs))]

        async def run(sink: Sink) -> None:
            patience = Patience(call.deadline_s)
            works = [
                patience.run(partial(_run, inference, call, request, place, each, choices, sink))
                for place, (each, choices) in enumerate(zip(sent, prompts, strict=True))
            ]
            await _all_of(works)

        if request.is_stream:
            async with EventStream(call) as stream:
                ids = EventIds(num_choices, resumption.received if resumption else ())
                streamed = StreamedAnswer(own, request, prompts, ids, stream)
                await run(streamed.take)
                await streamed.end()
        else:
            whole = WholeAnswer(own, request, prompts)
            await run(whole.take)
            await call.answer(whole.content())

    return handle


def _infilled(inference: Inference, request: CompletionRequest) -> CompletionRequest:
    """Return a request whose prompts hold what stands behind the outputs, if anything does."""
    if not request.suffix:
        return request
    return replace(request, inputs=tuple(inference.infill(request.inputs, request.suffix)))


async def _tokenized(inference: Inference, request: CompletionRequest) -> CompletionRequest:
    """Return a request whose prompts are token ids, where they get nothing around them."""
    if request.add_special_tokens:
        return request
    inputs = []
    for each in request.inputs:
        if isinstance(each.prompt, str):
            text = TokenizeInput(each.prompt, each.model, add_special_tokens=False)
            inputs.append(replace(each, prompt=await inference.tokenize(text)))
        else:
            inputs.append(each)
    return replace(request, inputs=tuple(inputs))


async def _resumed(
    inference: Inference,
    call: HttpCall,
    request: CompletionRequest,
    place: int,
    resumption: Resumption,
) -> GenerateInput | ReplayInput:
    """Return what goes on with one prompt of a stream; raises as `replay_of`."""
    sent = request.inputs[place]
    if len(request.inputs) > 1:
        # Each has one of its own: the one that was reported is not of all.
        resumption = replace(resumption, seed=None)
    received = resumption.received[place * request.n : (place + 1) * request.n]
    seed = sent.sampling_params.seed if resumption.seed is None else resumption.seed
    # Where it waited for room when the stream broke, it has no seed yet, and any will do.
    if seed is None:
        seed = inference.seed_of(sent.request_id, call.caller)
    if seed is None and not any(received):
        return sent
    return await replay_of(inference, call, sent, resumption)


async def _run(
    inference: Inference,
    call: HttpCall,
    request: CompletionRequest,
    place: int,
    sent: GenerateInput | ReplayInput,
    choices: PromptChoices,
    sink: Sink,
    begins: Begins,
) -> None:
    """Give a sink the parts of one prompt's choices."""
    async with aclosing(inference.events(sent, call.caller, call.deadline_s)) as events:
        async for event in events:
            begins()
            parts: list[Part] = []
            if choices.is_prompt_due(event):
                assert choices.started is not None, "the first event"
                token_ids, text = choices.started.prompt_token_ids, ""
                if request.echo:
                    text = await _prompt_text(inference, request, place, token_ids)
                parts += choices.prompt_parts(text, inference.token_text(token_ids[0]))
            parts += choices.take(event)
            # Also none of them: with its start a request is accepted, and so its answer begins.
            await sink(choices, parts)


async def _prompt_text(
    inference: Inference, request: CompletionRequest, place: int, token_ids: Sequence[int]
) -> str:
    """Return the text of a prompt as it was computed."""
    sent = request.inputs[place]
    if isinstance(sent.prompt, str) and sent.sampling_params.truncate_prompt_tokens is None:
        return sent.prompt
    skip = sent.sampling_params.skip_special_tokens
    return await inference.detokenize(DetokenizeInput(token_ids, sent.model, skip))


async def _all_of(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do several things at once; the first that fails ends the others."""
    if len(works) == 1:
        await works[0]
        return
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
