"""To and from the messages of vLLM's engine service, in protos/quire/facades."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message

from quire.contract.embeddings import Embeddings, EmbedInput
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput
from quire.contract.outputs import CellStatus, FinishReason, ModelInfo, TokenLogprobs
from quire.contract.sampling_params import MAX_ITEMS, SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams, check_num_choices
from quire.facades import vllm_engine_pb2 as pb
from quire.version import __version__

# What a message of this protocol may hold that is not served here, and must not be ignored.
_NOT_SERVED = {
    *("kv_transfer_params", "kv_transfer_params_json", "data_parallel_rank"),
    *("mm_inputs", "media_refs", "extra_mm_inputs"),
}
# Fields whose names and meanings are the same on both sides.
_SAME = (
    *("min_p", "frequency_penalty", "presence_penalty", "min_tokens", "skip_special_tokens"),
    *("spaces_between_special_tokens", "ignore_eos", "include_stop_str_in_output"),
)
_OPTIONAL = {
    *("temperature", "max_tokens", "logprobs", "prompt_logprobs", "seed"),
    "truncate_prompt_tokens",
}
# Where 0, that is an absent field, stands for another value.
_ABSENT = {"top_p": 1.0, "top_k": None, "repetition_penalty": 1.0, "n": 1}


def generate_input_from_proto(message: pb.GenerateRequest) -> GenerateInput:
    """Return the request of a message.

    Raises:
        InvalidRequestError: a parameter is out of bounds, or asks for what is not served here.
    """
    for name in _present(message) & _NOT_SERVED:
        raise InvalidRequestError(name, "must be absent: it is not supported")
    prompt: str | Sequence[int] = message.text
    if message.WhichOneof("input") == "tokenized":
        prompt = message.tokenized.input_ids
    return GenerateInput(prompt, _sampling_params(message.sampling_params), message.request_id)


def embed_input_from_proto(message: pb.EmbedRequest) -> EmbedInput:
    """Return the request of a message."""
    return EmbedInput([message.tokenized.input_ids], request_id=message.request_id)


def embedding_to_proto(found: Embeddings) -> pb.EmbedResponse:
    """Return the message of the only vector of a request."""
    (vector,), (num_prompt_tokens,) = found.vectors, found.num_prompt_tokens
    return pb.EmbedResponse(
        embedding=vector, prompt_tokens=num_prompt_tokens, embedding_dim=len(vector)
    )


def _present(message: Message) -> set[str]:
    """Return the names of the fields that a message has."""
    return {field.name for field, _ in message.ListFields()}


def _sampling_params(message: pb.SamplingParams) -> SamplingParams:
    for name in ("stop", "stop_token_ids", "logit_bias"):
        if len(items := getattr(message, name)) > MAX_ITEMS[name]:
            raise InvalidRequestError(
                name, f"must have at most {MAX_ITEMS[name]} items, got {len(items)}"
            )
    fields: dict[str, Any] = {name: getattr(message, name) for name in _SAME}
    fields |= {name: getattr(message, name) for name in _present(message) & _OPTIONAL}
    for name, value in _ABSENT.items():
        fields[name] = getattr(message, name) or value
    return SamplingParams(
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        logit_bias=dict(message.logit_bias),
        structured_outputs=_structured_outputs(message),
        **fields,
    )


def _structured_outputs(message: pb.SamplingParams) -> StructuredOutputsParams | None:
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "json_schema":
            return StructuredOutputsParams(json=message.json_schema)
        case "json_object":
            return StructuredOutputsParams(json_object=True) if message.json_object else None
        case "regex":
            return StructuredOutputsParams(regex=message.regex)
        case "grammar":
            return StructuredOutputsParams(grammar=message.grammar)
        case "choice":
            check_num_choices(len(message.choice.choices))
            return StructuredOutputsParams(choice=tuple(message.choice.choices))
        case other:
            raise InvalidRequestError(other, "must be absent: it is not supported")


def output_logprobs_to_proto(positions: Sequence[TokenLogprobs]) -> pb.OutputLogProbs | None:
    """Return the log-probabilities of output tokens, or None if there are none."""
    if not positions:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[each.logprobs[0] for each in positions],
        token_ids=[each.token_ids[0] for each in positions],
        top_logprobs=[_top(each) for each in positions],
    )


def input_logprobs_to_proto(
    prompt_token_ids: Sequence[int], positions: Sequence[TokenLogprobs]
) -> pb.InputLogProbs | None:
    """Return the log-probabilities of a prompt, or None if there are none.

    Args:
        prompt_token_ids: of the prompt.
        positions: of its tokens, from the second one on.
    """
    if not positions:
        return None
    return pb.InputLogProbs(
        token_logprobs=[
            pb.InputTokenLogProb(),
            *(pb.InputTokenLogProb(value=each.logprobs[0]) for each in positions),
        ],
        token_ids=prompt_token_ids,
        top_logprobs=[pb.TopLogProbs(), *map(_top, positions)],
    )


def _top(position: TokenLogprobs) -> pb.TopLogProbs:
    return pb.TopLogProbs(values=position.logprobs[1:], token_ids=position.token_ids[1:])


def finish_to_proto(
    reason: FinishReason, stop_str: str | None, last_token_id: int | None, params: SamplingParams
) -> dict[str, Any]:
    """Return the fields of GenerateComplete that say why an output ended."""
    fields: dict[str, Any] = {"finish_reason": reason.shown}
    if stop_str is not None:
        fields["matched_stop_str"] = stop_str
    elif reason is FinishReason.STOP and last_token_id in params.stop_token_ids:
        fields["matched_token_id"] = last_token_id
    return fields


def model_info_to_proto(model: ModelInfo) -> pb.GetModelInfoResponse:
    """Return the message of a model."""
    return pb.GetModelInfoResponse(
        model_path=model.name,
        is_generation=True,
        max_context_length=model.max_model_len,
        vocab_size=model.vocab_size,
        served_model_name=model.name,
        architectures=[model.architecture],
        eos_token_ids=model.eos_token_ids,
        max_req_input_len=model.max_model_len - 1,
    )


def loads_to_proto(cells: Sequence[CellStatus], rank: int | None) -> pb.GetLoadsResponse:
    """Return the load of each cell, in order of their addresses; of one if a rank is given."""
    loads = [
        _load(i, cell)
        for i, cell in enumerate(sorted(cells, key=lambda each: each.address))
        if rank in (None, i)
    ]
    timestamp = datetime.now(UTC).isoformat()
    return pb.GetLoadsResponse(
        timestamp=timestamp, version=__version__, dp_rank_count=len(cells), loads=loads
    )


def _load(rank: int, cell: CellStatus) -> pb.SchedulerLoad:
    state = cell.state
    used_blocks = state.num_blocks - state.num_free_blocks
    queries = state.prefix_cache_queries_total
    running_share = state.num_running / state.max_num_seqs if state.max_num_seqs else 0.0
    return pb.SchedulerLoad(
        dp_rank=rank,
        num_running_reqs=state.num_running,
        num_waiting_reqs=state.num_waiting,
        num_total_reqs=state.num_running + state.num_waiting,
        num_used_tokens=used_blocks * state.block_size,
        max_total_num_tokens=state.num_blocks * state.block_size,
        token_usage=used_blocks / state.num_blocks if state.num_blocks else 0.0,
        cache_hit_rate=state.prefix_cache_hits_total / queries if queries else 0.0,
        utilization=min(1.0, running_share),
        max_running_requests=state.max_num_seqs,
    )
