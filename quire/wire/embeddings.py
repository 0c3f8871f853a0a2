"""To and from the messages of Embed, of inference.proto."""

from collections.abc import Sequence

from quire.contract.embeddings import (
    Embeddings,
    EmbedInput,
    bytes_of,
    check_num_inputs,
    vector_of,
)
from quire.contract.pooling_params import PoolingParams
from quire.v1 import inference_pb2
from quire.wire.inference import check_ids


def embed_input_to_proto(request: EmbedInput) -> inference_pb2.EmbedRequest:
    """Return the message of a request.

    Raises:
        InvalidRequestError: a token id is negative or absurdly large: no message can hold it.
    """
    return inference_pb2.EmbedRequest(
        request_id=request.request_id,
        model=request.model,
        inputs=[_prompt_to_proto(place, each) for place, each in enumerate(request.prompts)],
        normalize=request.pooling_params.normalize,
        dimensions=request.pooling_params.dimensions,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        add_special_tokens=request.add_special_tokens,
        priority=request.priority,
        cache_salt=request.cache_salt,
        include_prompt_token_ids=request.include_prompt_token_ids,
        truncate_right=request.truncate_right,
    )


def _prompt_to_proto(place: int, prompt: str | Sequence[int]) -> inference_pb2.EmbedPrompt:
    if isinstance(prompt, str):
        return inference_pb2.EmbedPrompt(text=prompt)
    check_ids(f"inputs[{place}]", prompt)
    return inference_pb2.EmbedPrompt(token_ids=inference_pb2.TokenIds(ids=prompt))


def embed_input_from_proto(message: inference_pb2.EmbedRequest) -> EmbedInput:
    """Return the request of a message; its token ids stay the message's own.

    Raises:
        InvalidRequestError: there are no inputs, or too many, or a value is out of bounds.
    """
    check_num_inputs("inputs", len(message.inputs))
    is_given = message.HasField
    return EmbedInput(
        [
            each.token_ids.ids if each.WhichOneof("prompt") == "token_ids" else each.text
            for each in message.inputs
        ],
        PoolingParams(
            message.normalize if is_given("normalize") else True,
            message.dimensions if is_given("dimensions") else None,
        ),
        message.request_id,
        message.model,
        message.truncate_prompt_tokens if is_given("truncate_prompt_tokens") else None,
        message.add_special_tokens if is_given("add_special_tokens") else True,
        message.priority,
        message.cache_salt,
        message.include_prompt_token_ids,
        message.truncate_right,
    )


def embeddings_to_proto(embeddings: Embeddings) -> inference_pb2.EmbedResponse:
    """Return the message of vectors, all of one size."""
    return inference_pb2.EmbedResponse(
        request_id=embeddings.request_id,
        vectors=b"".join(map(bytes_of, embeddings.vectors)),
        embedding_size=len(embeddings.vectors[0]),
        num_prompt_tokens=embeddings.num_prompt_tokens,
        model=embeddings.model,
        numerics_id=embeddings.numerics_id,
        prompt_token_ids=[
            inference_pb2.TokenIds(ids=token_ids) for token_ids in embeddings.prompt_token_ids
        ],
    )


def embeddings_from_proto(message: inference_pb2.EmbedResponse) -> Embeddings:
    """Return the vectors of a message."""
    size = 4 * message.embedding_size
    starts = range(0, len(message.vectors), size) if size else ()
    return Embeddings(
        tuple(vector_of(message.vectors[start : start + size]) for start in starts),
        tuple(message.num_prompt_tokens),
        message.model,
        message.request_id,
        message.numerics_id,
        tuple(tuple(each.ids) for each in message.prompt_token_ids),
    )
