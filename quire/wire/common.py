"""Between protobuf messages and domain objects: the only place that knows both.

Readers raise InvalidRequestError where a message from a client can be wrong; messages between our
own services are trusted to be well formed.
"""

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import (
    CellState,
    CellStatus,
    Delta,
    Event,
    Finished,
    FinishReason,
    ModelInfo,
    Started,
    TokenLogprobs,
)
from quire.contract.sampling_params import SamplingParams
from quire.contract.time_breakdown import TimeBreakdown
from quire.v1 import common_pb2, inference_pb2

_FINISH_TO_PROTO: dict[FinishReason, common_pb2.FinishReason.ValueType] = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
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
    """Return every field, defaults included."""
    return common_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        allowed_token_ids=params.allowed_token_ids,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        logprobs=params.logprobs,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        n=params.n,
        best_of=params.best_of,
        use_beam_search=params.use_beam_search,
        length_penalty=params.length_penalty,
        early_stopping=_EARLY_STOPPING_TO_PROTO[params.early_stopping],
        bad_words=params.bad_words,
        bad_words_token_ids=[
            common_pb2.TokenSequence(token_ids=ids) for ids in params.bad_words_token_ids
        ],
        prompt_logprobs=params.prompt_logprobs,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        truncate_prompt_tokens=params.truncate_prompt_tokens,
    )


def sampling_params_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Read sampling parameters; absent fields take their defaults.

    Raises:
        InvalidRequestError: a value is out of bounds.
    """
    default = SamplingParams()
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else default.temperature,
        top_p=message.top_p if message.HasField("top_p") else default.top_p,
        top_k=message.top_k if message.HasField("top_k") else None,
        min_p=message.min_p,
        seed=message.seed if message.HasField("seed") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=(
            message.repetition_penalty
            if message.HasField("repetition_penalty")
            else default.repetition_penalty
        ),
        logit_bias=dict(message.logit_bias),
        allowed_token_ids=tuple(message.allowed_token_ids),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop_str_in_output=message.include_stop_str_in_output,
        skip_special_tokens=(
            message.skip_special_tokens if message.HasField("skip_special_tokens") else True
        ),
        n=message.n if message.HasField("n") else default.n,
        best_of=message.best_of if message.HasField("best_of") else None,
        use_beam_search=message.use_beam_search,
        length_penalty=(
            message.length_penalty if message.HasField("length_penalty") else default.length_penalty
        ),
        early_stopping=_early_stopping_from_proto(message.early_stopping),
        bad_words=tuple(message.bad_words),
        bad_words_token_ids=tuple(tuple(ids.token_ids) for ids in message.bad_words_token_ids),
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        spaces_between_special_tokens=(
            message.spaces_between_special_tokens
            if message.HasField("spaces_between_special_tokens")
            else True
        ),
        truncate_prompt_tokens=(
            message.truncate_prompt_tokens if message.HasField("truncate_prompt_tokens") else None
        ),
    )


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
    return common_pb2.ModelInfo(
        name=info.name,
        architecture=info.architecture,
        dtype=info.dtype,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        eos_token_ids=info.eos_token_ids,
        num_parameters=info.num_parameters,
    )


def model_info_from_proto(message: common_pb2.ModelInfo) -> ModelInfo:
    """Return the model of a message."""
    return ModelInfo(
        name=message.name,
        architecture=message.architecture,
        dtype=message.dtype,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
        num_parameters=message.num_parameters,
    )


# CellState and its message have the same fields by the same names; a test holds them to it.
_CELL_STATE_FIELDS = tuple(CellState.__dataclass_fields__)


def cell_state_to_proto(state: CellState) -> common_pb2.CellState:
    """Return the message of a cell's state."""
    return common_pb2.CellState(**{name: getattr(state, name) for name in _CELL_STATE_FIELDS})


def cell_state_from_proto(message: common_pb2.CellState) -> CellState:
    """Return the cell's state of a message."""
    return CellState(**{name: getattr(message, name) for name in _CELL_STATE_FIELDS})


# As for CellState.
_TIME_BREAKDOWN_FIELDS = tuple(TimeBreakdown.__dataclass_fields__)


def time_breakdown_to_proto(breakdown: TimeBreakdown) -> common_pb2.TimeBreakdown:
    """Return the message of a breakdown."""
    fields = {name: getattr(breakdown, name) for name in _TIME_BREAKDOWN_FIELDS}
    return common_pb2.TimeBreakdown(**fields)


def time_breakdown_from_proto(message: common_pb2.TimeBreakdown) -> TimeBreakdown:
    """Return the breakdown of a message."""
    return TimeBreakdown(**{name: getattr(message, name) for name in _TIME_BREAKDOWN_FIELDS})


def cell_status_to_proto(status: CellStatus) -> inference_pb2.CellStatus:
    """Return the message of a cell as a router sees it."""
    return inference_pb2.CellStatus(
        address=status.address,
        connected=status.connected,
        model=None if status.model is None else model_info_to_proto(status.model),
        state=cell_state_to_proto(status.state),
    )


def cell_status_from_proto(message: inference_pb2.CellStatus) -> CellStatus:
    """Return the cell of a message."""
    return CellStatus(
        address=message.address,
        connected=message.connected,
        model=model_info_from_proto(message.model) if message.HasField("model") else None,
        state=cell_state_from_proto(message.state),
    )


def event_to_proto(event: Event) -> inference_pb2.GenerateResponse:
    """Return the response that carries an event of a Generate stream."""
    match event:
        case Started():
            started = inference_pb2.GenerateStarted(
                request_id=event.request_id,
                num_prompt_tokens=event.num_prompt_tokens,
                seed=event.seed,
            )
            return inference_pb2.GenerateResponse(started=started)
        case Delta():
            delta = inference_pb2.GenerateDelta(
                text=event.text,
                token_ids=event.token_ids,
                logprobs=map(token_logprobs_to_proto, event.logprobs),
                index=event.index,
                prompt_logprobs=map(token_logprobs_to_proto, event.prompt_logprobs),
            )
            return inference_pb2.GenerateResponse(delta=delta)
        case Finished():
            finished = inference_pb2.GenerateFinished(
                finish_reason=finish_reason_to_proto(event.finish_reason),
                num_output_tokens=event.num_output_tokens,
                stop_str=event.stop_str,
                index=event.index,
                cumulative_logprob=event.cumulative_logprob,
                time_breakdown=(
                    None
                    if event.time_breakdown is None
                    else time_breakdown_to_proto(event.time_breakdown)
                ),
            )
            return inference_pb2.GenerateResponse(finished=finished)


def event_from_proto(message: inference_pb2.GenerateResponse) -> Event:
    """Return the event that a response carries.

    Raises:
        ValueError: the response carries none that is known here.
    """
    match message.WhichOneof("event"):
        case "started":
            started = message.started
            return Started(started.request_id, started.num_prompt_tokens, started.seed)
        case "delta":
            delta = message.delta
            return Delta(
                delta.text,
                tuple(delta.token_ids),
                tuple(map(token_logprobs_from_proto, delta.logprobs)),
                delta.index,
                tuple(map(token_logprobs_from_proto, delta.prompt_logprobs)),
            )
        case "finished":
            finished = message.finished
            return Finished(
                finish_reason_from_proto(finished.finish_reason),
                finished.num_output_tokens,
                finished.stop_str if finished.HasField("stop_str") else None,
                finished.index,
                finished.cumulative_logprob if finished.HasField("cumulative_logprob") else None,
                (
                    time_breakdown_from_proto(finished.time_breakdown)
                    if finished.HasField("time_breakdown")
                    else None
                ),
            )
        case other:
            raise ValueError(f"unknown event {other!r} in a GenerateResponse")
