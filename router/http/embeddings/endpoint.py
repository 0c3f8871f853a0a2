"""What answers /v1/embeddings, /score and /rerank."""

import asyncio
import base64
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from quire.contract.embeddings import Embeddings, EmbedInput, bytes_of, cosine
from router.http.call import HttpCall, to_json
from router.http.embeddings.request import (
    ScoreRequest,
    read_embeddings,
    read_rerank,
    read_score,
)
from router.http.endpoint import Handle
from router.requests.embeddings import Embedder, Name
from router.requests.inference import Inference


def embeddings(inference: Inference) -> Handle:
    """Return what turns `input`, or `messages`, into vectors, in OpenAI's shape."""
    embedder = Embedder(inference)

    async def handle(call: HttpCall, held: ExitStack) -> None:
        with inference.refusals(call.caller):
            asked = read_embeddings(call.body)
            request = asked.request
            if asked.chat is not None:
                prompt = (await inference.generate_input(asked.chat)).prompt
                request = replace(request, prompts=[prompt])
        found = await _embed(embedder, call, held, request, asked.name)
        head = _head("embd", found, call)
        # A vector at a time: as text it takes ten times as much.
        await call.begin(HTTPStatus.OK, {"content-type": "application/json"})
        await call.write(to_json({**head, "usage": _usage(found)})[:-1] + b',"data":[')
        for index, vector in enumerate(found.vectors):
            shown: Any = vector.tolist()
            if asked.is_base64:
                shown = base64.b64encode(bytes_of(vector)).decode()
            entry = {"object": "embedding", "index": index, "embedding": shown}
            await call.write((b"," if index else b"") + to_json(entry))
            await asyncio.sleep(0)  # others go on between vectors
        await call.write(b"]}", is_last=True)

    return _holding(handle)


def score(inference: Inference) -> Handle:
    """Return what answers how alike pairs of texts are, in vLLM's shape."""
    embedder = Embedder(inference)

    async def handle(call: HttpCall, held: ExitStack) -> None:
        with inference.refusals(call.caller):
            asked = read_score(call.body)
        found = await _embed(embedder, call, held, asked.request, asked.name)
        scores = await _scores(asked, found)
        data = [
            {"index": index, "object": "score", "score": each} for index, each in enumerate(scores)
        ]
        await call.answer({**_head("score", found, call), "data": data, "usage": _usage(found)})

    return _holding(handle)


def rerank(inference: Inference) -> Handle:
    """Return what orders documents by how alike they are to a query, as Jina and Cohere do."""
    embedder = Embedder(inference)

    async def handle(call: HttpCall, held: ExitStack) -> None:
        with inference.refusals(call.caller):
            asked = read_rerank(call.body)
        found = await _embed(embedder, call, held, asked.scores.request, asked.scores.name)
        scores = await _scores(asked.scores, found)
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        results = []
        for index in best[: asked.top_n]:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            if asked.returns_documents:
                result["document"] = {"text": asked.documents[index]}
            results.append(result)
        own = {"id": f"rerank-{call.request_id}", "model": found.model}
        await call.answer({**own, "usage": _usage(found), "results": results})

    return _holding(handle)


def _holding(handle: Callable[[HttpCall, ExitStack], Awaitable[None]]) -> Handle:
    """Return what answers while the vectors of the call count as held."""

    async def handle_call(call: HttpCall) -> None:
        with ExitStack() as held:
            await handle(call, held)

    return handle_call


async def _embed(
    embedder: Embedder, call: HttpCall, held: ExitStack, request: EmbedInput, name: Name
) -> Embeddings:
    call.request_id = call.request_id or uuid.uuid4().hex
    request = replace(request, request_id=call.request_id)
    # The body is kept until then: its inputs are, and count among what all may hold.
    return await embedder.embed(request, call.caller, held, call.deadline_s, name)


async def _scores(asked: ScoreRequest, found: Embeddings) -> Sequence[float]:
    """Return the cosine of each pair."""
    first, second = found.vectors[: asked.num_first], found.vectors[asked.num_first :]
    scores = []
    for index, vector in enumerate(second):
        scores.append(cosine(first[index if len(first) > 1 else 0], vector))
        await asyncio.sleep(0)  # others go on between pairs
    return scores


def _head(kind: str, found: Embeddings, call: HttpCall) -> dict[str, Any]:
    return {
        "id": f"{kind}-{call.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": found.model,
    }


def _usage(found: Embeddings) -> dict[str, int]:
    number = sum(found.num_prompt_tokens)
    return {"prompt_tokens": number, "total_tokens": number, "completion_tokens": 0}
