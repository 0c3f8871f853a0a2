"""Vectors of many prompts, each a request of its own."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from quire.contract.callers import Caller
from quire.contract.embeddings import MODELS_LENGTH, Embeddings, EmbedInput, vector_of
from quire.contract.errors import AbortedError, InvalidRequestError, NotFiniteError
from quire.contract.inputs import GenerateInput, TokenizeInput
from quire.contract.outputs import Finished, FinishReason, ModelInfo, Started
from quire.contract.sampling_params import SamplingParams
from router.requests.counters import RequestCounters
from router.requests.inference import Inference
from router.requests.patience import Begins, Patience, all_of
from router.requests.validate import check_lengths

# Of the id of a call, in those of its requests.
MAX_SHOWN_ID_CHARS = 80
# Of one call: they must fit a message.
MAX_VECTOR_BYTES = 48 * 2**20

T = TypeVar("T")
Name = Callable[[int], str]
"""From the place of a prompt to what its caller knows it by, in messages."""


def numbered(field: str) -> Name:
    """Return what names the items of a field by their places."""
    return lambda place: f"{field}[{place}]"


class Embedder:
    """Has the vectors of prompts computed.

    Args:
        inference: runs the requests.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._calls = inference.vector_calls

    async def embed(
        self,
        request: EmbedInput,
        caller: Caller,
        held: ExitStack,
        deadline_s: float | None = None,
        name: Name = numbered("inputs"),  # noqa: B008
    ) -> Embeddings:
        """Return the vector of each prompt; the first prompt that fails fails them all.

        Args:
            request: what is asked for.
            caller: whose API key it came with.
            held: closed once the client has the vectors, which count as held until then.
            deadline_s: until when its client waits, on the monotonic clock; None for ever.
            name: of each prompt, in messages.

        Raises:
            QuireError: as `Inference.events`; AbortedError, if it was ended by Abort;
                NotFiniteError, if a vector is not finite; OverloadedError, also if the vectors of
                all calls would be too many.
        """
        with self._inference.refusals(caller):
            # First, since texts cost their tokens before the checks of each prompt's request.
            caller.check_priority(request.priority)
            check_lengths(request.request_id, request.cache_salt)
            model = await self._inference.find_model(request.model, with_vectors=True)
            held.enter_context(self._calls.hold(_num_bytes(request, model, name)))
            num_kept = request.truncate_prompt_tokens
            if num_kept == MODELS_LENGTH:
                num_kept = model.max_model_len
            params = SamplingParams(
                max_tokens=1,
                temperature=0.0,
                seed=0,
                truncate_prompt_tokens=num_kept,
                truncate_right=request.truncate_right,
            )
        request_id = request.request_id or uuid.uuid4().hex
        # Short enough, and no other request's.
        other_id = f"{request_id[:MAX_SHOWN_ID_CHARS]}-{uuid.uuid4().hex}"
        patience = Patience(deadline_s)

        async def compute(place: int) -> tuple[Started, Finished]:
            prompt = request.prompts[place]

            async def attempt(begins: Begins) -> tuple[Started, Finished]:
                nonlocal prompt
                if isinstance(prompt, str):
                    prompt = await self._tokenized(prompt, request, name(place))
                return await self._one(
                    replace(sent, prompt=prompt), caller, deadline_s, record, name(place), begins
                )

            sent = GenerateInput(
                prompt,
                params,
                f"{other_id}-{place}" if place else request_id,
                request.model,
                request.priority,
                request.cache_salt,
                include_prompt_token_ids=request.include_prompt_token_ids,
                pooling_params=request.pooling_params,
            )
            with self._inference.counted(caller) as record:
                return await patience.run(attempt)

        works = [partial(compute, place) for place in range(len(request.prompts))]
        with ExitStack() as opened:
            with self._inference.refusals(caller):
                aborted = opened.enter_context(self._calls.open(request_id, caller.name))
            found = await _unless(aborted, all_of(works, caller))
        if found is None:
            with self._inference.refusals(caller):
                raise AbortedError(f"request_id: {request_id} was aborted")
        numerics_ids = {started.numerics_id for started, _ in found}
        return Embeddings(
            tuple(vector_of(finished.vector or b"") for _, finished in found),
            tuple(started.num_prompt_tokens for started, _ in found),
            model.name,
            request_id,
            numerics_ids.pop() if len(numerics_ids) == 1 else "",
            tuple(started.prompt_token_ids for started, _ in found)
            if request.include_prompt_token_ids
            else (),
        )

    async def _tokenized(self, prompt: str, request: EmbedInput, name: str) -> Sequence[int]:
        """Return the token ids of a prompt; none of an empty one, which is refused."""
        if not prompt:
            return ()
        text = TokenizeInput(prompt, request.model, request.add_special_tokens)
        return await self._inference.tokenize_in_turn(text, name)

    async def _one(
        self,
        sent: GenerateInput,
        caller: Caller,
        deadline_s: float | None,
        record: RequestCounters,
        name: str,
        begins: Begins,
    ) -> tuple[Started, Finished]:
        """Return the beginning of a request, and its end, which brings the vector."""
        started: Started | None = None
        try:
            events = self._inference.events(sent, caller, deadline_s, record)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Started):
                        started = event
                        begins()
                    elif isinstance(event, Finished):
                        finished = event
        except InvalidRequestError as error:
            raise _named(error, name) from error
        assert started is not None, "the first event"
        if finished.vector is None:
            if finished.finish_reason is FinishReason.ABORT:
                raise AbortedError(f"{name}: its request was aborted")
            raise NotFiniteError(f"{name}: no finite vector was computed for it")
        return started, finished


def _num_bytes(request: EmbedInput, model: ModelInfo, name: Name) -> int:
    """Return the size of all vectors, in bytes.

    Raises:
        InvalidRequestError: they do not fit an answer.
    """
    each = 4 * min(request.pooling_params.dimensions or model.embedding_size, model.embedding_size)
    number, most = len(request.prompts), MAX_VECTOR_BYTES // (each or 1)
    if number > most:
        raise InvalidRequestError(
            name(most), f"must be one of at most {most} with this model, got {number}"
        )
    return each * number


def _named(error: InvalidRequestError, name: str) -> InvalidRequestError:
    """Return an error that names a prompt as its caller does."""
    if error.field != "prompt":
        return error
    return error.renamed(name)


async def _unless(aborted: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what comes of a work; None where the call is aborted, which ends it."""
    working = asyncio.create_task(work)
    tasks = working, asyncio.create_task(aborted.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
