"""/v1/completions: a prompt, or several, and what a model makes of them."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from quire.contract.inputs import DetokenizeInput, GenerateInput, ReplayInput, TokenizeInput
from quire.contract.outputs import Event
from router.http.call import HttpCall
from router.http.completions.answers import StreamedAnswer, WholeAnswer
from router.http.completions.choices import Part, PromptChoices
from router.http.completions.request import CompletionRequest, read_request
from router.http.endpoint import Handle
from router.http.event_stream import EventStream, while_waiting
from router.http.resume import EventIds, Resumption, read_created, read_resumption, replay_of
from router.requests.inference import Inference
from router.requests.patience import Begins, Patience, all_of

Sink = Callable[[PromptChoices, Sequence[Part]], Awaitable[None]]


def completions(inference: Inference) -> Handle:
    """Return what answers requests."""

    async def handle(call: HttpCall) -> None:
        with inference.refusals(call.caller):
            request = read_request(call.body)
            # First, since texts cost their tokens before the checks of each prompt's request.
            call.caller.check_priority(request.inputs[0].priority)
            num_choices = len(request.inputs) * request.n
            resumption = read_resumption(call, num_choices, request.is_stream)
            request_id = resumption.request_id if resumption else call.request_id
            call.request_id = request_id or uuid.uuid4().hex
            created = read_created(call.body.fields("resume"), "created")
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
        own = {"id": f"cmpl-{call.request_id}", "created": created, "model": model}
        make_detokenizer = None
        if request.logprobs is not None:
            params = request.inputs[0].sampling_params  # of all of them
            make_detokenizer = partial(inference.detokenizer, params=params)
        prompts = [
            PromptChoices(request, place, make_detokenizer) for place in range(len(request.inputs))
        ]

        async def run(sink: Sink) -> None:
            patience = Patience(call.deadline_s)

            async def compute(place: int) -> None:
                async def attempt(begins: Begins) -> None:
                    if len(sent) > 1:  # once, however often it is sent
                        sent[place] = await _with_ids(inference, sent[place])
                    events = inference.events(sent[place], call.caller, call.deadline_s, record)
                    async with aclosing(events):
                        async for event in events:
                            begins()
                            parts = await _parts(inference, request, prompts[place], place, event)
                            # Also none of them: with its start a request is accepted, and so its
                            # answer begins.
                            await sink(prompts[place], parts)

                with inference.counted(call.caller) as record:
                    await patience.run(attempt)

            await all_of([partial(compute, place) for place in range(len(sent))], call.caller)

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
    inputs = [await _as_ids(inference, each, False) for each in request.inputs]
    return replace(request, inputs=tuple(inputs))


async def _with_ids(
    inference: Inference, sent: GenerateInput | ReplayInput
) -> GenerateInput | ReplayInput:
    """Return what is sent with token ids in the place of a prompt's text."""
    if isinstance(sent, ReplayInput):
        return replace(sent, request=await _as_ids(inference, sent.request))
    return await _as_ids(inference, sent)


async def _as_ids(
    inference: Inference, sent: GenerateInput, add_special_tokens: bool = True
) -> GenerateInput:
    """As `_with_ids`; an empty prompt stays, which is refused."""
    if not isinstance(sent.prompt, str) or not sent.prompt:
        return sent
    text = TokenizeInput(sent.prompt, sent.model, add_special_tokens)
    return replace(sent, prompt=await inference.tokenize_in_turn(text, "prompt"))


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


async def _parts(
    inference: Inference,
    request: CompletionRequest,
    choices: PromptChoices,
    place: int,
    event: Event,
) -> Sequence[Part]:
    """Return what an event brings of one prompt's choices."""
    parts: list[Part] = []
    if choices.is_prompt_due(event):
        assert choices.started is not None, "the first event"
        token_ids, text = choices.started.prompt_token_ids, ""
        offsets: Sequence[int] = ()
        if request.echo:
            text = await _prompt_text(inference, request, place, token_ids)
        if choices.shows_prompt_logprobs:
            params = request.inputs[place].sampling_params
            offsets = await inference.text_offsets(text, token_ids, params)
        parts += choices.prompt_parts(text, inference.token_text(token_ids[0]), offsets)
    return [*parts, *choices.take(event)]


async def _prompt_text(
    inference: Inference, request: CompletionRequest, place: int, token_ids: Sequence[int]
) -> str:
    """Return the text of a prompt as it was computed."""
    sent = request.inputs[place]
    if isinstance(sent.prompt, str) and sent.sampling_params.truncate_prompt_tokens is None:
        return sent.prompt
    skip = sent.sampling_params.skip_special_tokens
    return await inference.detokenize(DetokenizeInput(token_ids, sent.model, skip))
