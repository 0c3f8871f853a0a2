"""To and from the messages of common.proto."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import CellState, FinishReason, ModelInfo, TokenLogprobs
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import (
    FILLED_IN,
    MAX_TOKENS,
    SamplingParams,
    check_counts,
)
from quire.contract.structured_outputs import (
    StructuredOutputsParams,
    check_num_chars,
    check_num_choices,
)
from quire.contract.time_breakdown import TimeBreakdown
from quire.v1 import common_pb2, inference_pb2
from quire.wire.fields import fields_of, from_fields

if TYPE_CHECKING:
    from quire.v1 import scheduler_pb2, worker_pb2

_FINISH_TO_PROTO: dict[FinishReason, common_pb2.FinishReason.ValueType] = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
    FinishReason.NO_TOKEN: common_pb2.FINISH_REASON_NO_TOKEN,
}
_EARLY_STOPPING_TO_PROTO: dict[bool | str, common_pb2.EarlyStopping.ValueType] = {
    False: common_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: common_pb2.EARLY_STOPPING_ALWAYS,
    "never": common_pb2.EARLY_STOPPING_NEVER,
}
_FINISH_FROM_PROTO: dict[int, FinishReason] = {
    number: reason for reason, number in _FINISH_TO_PROTO.items()
}


def finish_reason_to_proto(reason: FinishReason) -> common_pb2.FinishReason.ValueType:
    """Return the enum value of a reason."""
    return _FINISH_TO_PROTO[reason]


def finish_reason_from_proto(value: int) -> FinishReason:
    """Return the reason of an enum value; one that is unknown here reads as ERROR."""
    return _FINISH_FROM_PROTO.get(value, FinishReason.ERROR)


def sampling_params_to_proto(params: SamplingParams) -> common_pb2.SamplingParams:
    """Return every field, defaults included, but those that are left open."""
    fields = fields_of(params)
    for name in fields.pop("left_open"):
        fields[name] = None
    fields["ignore_generation_config"] = not params.left_open
    fields["early_stopping"] = _EARLY_STOPPING_TO_PROTO[params.early_stopping]
    fields["bad_words_token_ids"] = token_sequences_to_proto(params.bad_words_token_ids)
    fields["structured_outputs"] = structured_outputs_to_proto(params.structured_outputs)
    return common_pb2.SamplingParams(**fields)


def sampling_params_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Return the parameters of a message; absent fields take their defaults.

    Without max_tokens an answer is as long as its model allows: 16 is a default of Python's alone.

    Raises:
        InvalidRequestError: a value is out of bounds.
    """
    check_counts(message)  # before anything of them is copied
    if message.HasField("top_k") and not message.top_k:
        raise InvalidRequestError("top_k", f"must be in [1, {MAX_TOKENS}] or absent, got 0")
    asked: Any = message  # by names of fields that are data
    left_open = () if message.ignore_generation_config else FILLED_IN
    return from_fields(
        SamplingParams,
        message,
        left_open=frozenset(name for name in left_open if not asked.HasField(name)),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        early_stopping=_early_stopping_from_proto(message.early_stopping),
        bad_words_token_ids=tuple(tuple(each.token_ids) for each in message.bad_words_token_ids),
        logit_bias=dict(message.logit_bias),
        structured_outputs=structured_outputs_from_proto(message),
    )


def structured_outputs_to_proto(
    grammar: StructuredOutputsParams | None,
) -> common_pb2.StructuredOutputs | None:
    """Return the message of a grammar, None for none."""
    return None if grammar is None else common_pb2.StructuredOutputs(**fields_of(grammar))


def structured_outputs_from_proto(
    message: common_pb2.SamplingParams | inference_pb2.GenerateStarted,
) -> StructuredOutputsParams | None:
    """Return the grammar that a message holds, None for none.

    Raises:
        InvalidRequestError: it is none that there can be, or too large.
    """
    if not message.HasField("structured_outputs"):
        return None
    grammar = message.structured_outputs
    check_num_choices(len(grammar.choice))  # before they are copied
    check_num_chars("structured_outputs.choice", sum(map(len, grammar.choice)))
    return from_fields(StructuredOutputsParams, grammar)


def pooling_params_to_proto(params: PoolingParams | None) -> common_pb2.PoolingParams | None:
    """Return the message of what a request for a vector asks for, None where it is for tokens."""
    return None if params is None else common_pb2.PoolingParams(**fields_of(params))


def pooling_params_from_proto(
    message: "scheduler_pb2.Submission | worker_pb2.SequenceState",
) -> PoolingParams | None:
    """Return what a request for a vector asks for, None where it is for tokens."""
    if not message.HasField("pooling_params"):
        return None
    params = message.pooling_params
    return PoolingParams(
        params.normalize, params.dimensions if params.HasField("dimensions") else None
    )


def token_sequences_to_proto(
    sequences: Iterable[Sequence[int]],
) -> list[common_pb2.TokenSequence]:
    """Return the messages of sequences of token ids."""
    return [common_pb2.TokenSequence(token_ids=each) for each in sequences]


def _early_stopping_from_proto(value: int) -> bool | str:
    for early_stopping, number in _EARLY_STOPPING_TO_PROTO.items():
        if number == value:
            return early_stopping
    raise InvalidRequestError("early_stopping", f"must be one that is known here, got {value}")


def token_logprobs_to_proto(logprobs: TokenLogprobs) -> common_pb2.TokenLogprobs:
    """Return the message of a position's log-probabilities."""
    return common_pb2.TokenLogprobs(
        token_ids=logprobs.token_ids,
        logprobs=logprobs.logprobs,
        sampled_rank=logprobs.sampled_rank,
        texts=logprobs.texts,
    )


def token_logprobs_from_proto(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    """Return the log-probabilities of a message."""
    return TokenLogprobs(
        tuple(message.token_ids),
        tuple(message.logprobs),
        message.sampled_rank,
        tuple(message.texts),
    )


def model_info_to_proto(info: ModelInfo) -> common_pb2.ModelInfo:
    """Return the message of a model."""
    return common_pb2.ModelInfo(**fields_of(info))


def model_info_from_proto(message: common_pb2.ModelInfo) -> ModelInfo:
    """Return the model of a message."""
    return from_fields(ModelInfo, message)


def cell_state_to_proto(state: CellState) -> common_pb2.CellState:
    """Return the message of a cell's state."""
    return common_pb2.CellState(**fields_of(state))


def cell_state_from_proto(message: common_pb2.CellState) -> CellState:
    """Return the cell's state of a message."""
    return from_fields(CellState, message)


def time_breakdown_to_proto(breakdown: TimeBreakdown) -> common_pb2.TimeBreakdown:
    """Return the message of a time breakdown."""
    return common_pb2.TimeBreakdown(**fields_of(breakdown))


def time_breakdown_from_proto(message: common_pb2.TimeBreakdown) -> TimeBreakdown:
    """Return the time breakdown of a message."""
    return from_fields(TimeBreakdown, message)
