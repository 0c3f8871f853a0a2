"""To and from the messages of inference.proto."""

from collections.abc import Iterable, Sequence
from typing import Any

from quire.contract.chat import ResumeChatInput
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import (
    DetokenizeInput,
    GenerateInput,
    ReceivedOutput,
    ResumeInput,
    TokenizeInput,
)
from quire.contract.outputs import CellStatus, Delta, Event, Finished, ModelInfo, Started
from quire.v1 import inference_pb2
from quire.wire.chat import (
    chat_input_from_proto,
    chat_input_to_proto,
    parsed_output_from_proto,
    parsed_output_to_proto,
)
from quire.wire.common import (
    cell_state_from_proto,
    cell_state_to_proto,
    finish_reason_from_proto,
    finish_reason_to_proto,
    model_info_from_proto,
    model_info_to_proto,
    sampling_params_from_proto,
    sampling_params_to_proto,
    structured_outputs_from_proto,
    structured_outputs_to_proto,
    time_breakdown_from_proto,
    time_breakdown_to_proto,
    token_logprobs_from_proto,
    token_logprobs_to_proto,
)
from quire.wire.fields import fields_of, from_fields

# ---------------------------------------------------------------- from clients


def generate_input_to_proto(request: GenerateInput) -> inference_pb2.GenerateRequest:
    """Return the message of a request.

    Raises:
        InvalidRequestError: a token id is negative or absurdly large: no message can hold it.
    """
    message = inference_pb2.GenerateRequest(
        request_id=request.request_id,
        model=request.model,
        sampling_params=sampling_params_to_proto(request.sampling_params),
        priority=request.priority,
        cache_salt=request.cache_salt,
        include_time_breakdown=request.include_time_breakdown,
        include_prompt_token_ids=request.include_prompt_token_ids,
        heartbeat_ms=request.heartbeat_ms,
        resumable=request.resumable,
    )
    if isinstance(request.prompt, str):
        message.text = request.prompt
    else:
        check_ids("prompt", request.prompt)
        message.token_ids.ids.extend(request.prompt)
    return message


def generate_input_from_proto(message: inference_pb2.GenerateRequest) -> GenerateInput:
    """Return the request of a message.

    Raises:
        InvalidRequestError: a sampling parameter is out of bounds.
    """
    prompt: str | Sequence[int] = message.text
    if message.WhichOneof("prompt") == "token_ids":
        prompt = message.token_ids.ids
    return GenerateInput(
        prompt,
        sampling_params_from_proto(message.sampling_params),
        message.request_id,
        message.model,
        message.priority,
        message.cache_salt,
        message.include_time_breakdown,
        message.include_prompt_token_ids,
        message.heartbeat_ms if message.HasField("heartbeat_ms") else None,
        message.resumable,
    )


def resume_input_to_proto(resumed: ResumeInput) -> inference_pb2.ResumeRequest:
    """Return the message of a request whose stream broke; raises as `generate_input_to_proto`."""
    fields = fields_of(resumed)
    if isinstance(resumed, ResumeChatInput):
        fields["chat"] = chat_input_to_proto(resumed.chat)
    fields["request"] = generate_input_to_proto(resumed.request)
    fields["received"] = [
        inference_pb2.ReceivedOutput(**fields_of(output)) for output in resumed.received
    ]
    return inference_pb2.ResumeRequest(**fields)


def resume_input_from_proto(message: inference_pb2.ResumeRequest) -> ResumeInput:
    """Return the request of a message; raises as `generate_input_from_proto`."""
    fields = {
        "request": generate_input_from_proto(message.request),
        "seed": message.seed if message.HasField("seed") else None,
        "received": tuple(from_fields(ReceivedOutput, output) for output in message.received),
    }
    if message.HasField("chat") and message.chat.parse_output:
        chat = chat_input_from_proto(message.chat)
        return from_fields(ResumeChatInput, message, **fields, chat=chat)
    return from_fields(ResumeInput, message, **fields)


def tokenize_input_to_proto(request: TokenizeInput) -> inference_pb2.TokenizeRequest:
    """Return the message of a text to be tokenized."""
    return inference_pb2.TokenizeRequest(**fields_of(request))


def tokenize_input_from_proto(message: inference_pb2.TokenizeRequest) -> TokenizeInput:
    """Return the text of a message."""
    return from_fields(TokenizeInput, message)


def detokenize_input_to_proto(request: DetokenizeInput) -> inference_pb2.DetokenizeRequest:
    """Return the message of token ids to be detokenized.

    Raises:
        InvalidRequestError: a token id is negative or absurdly large: no message can hold it.
    """
    check_ids("token_ids", request.token_ids)
    return inference_pb2.DetokenizeRequest(**fields_of(request))


def detokenize_input_from_proto(message: inference_pb2.DetokenizeRequest) -> DetokenizeInput:
    """Return the token ids of a message."""
    return from_fields(DetokenizeInput, message, token_ids=message.token_ids)


def check_ids(field: str, token_ids: Sequence[int]) -> None:
    """Check that a message can hold token ids.

    Raises:
        InvalidRequestError: one is negative or absurdly large.
    """
    for token_id in token_ids:
        if not 0 <= token_id < 2**32:
            raise InvalidRequestError(field, f"token ids must be in [0, 2**32), got {token_id}")


# ---------------------------------------------------------------- to clients


def models_to_proto(models: Iterable[ModelInfo]) -> inference_pb2.ListModelsResponse:
    """Return the message of the models that are served."""
    return inference_pb2.ListModelsResponse(models=map(model_info_to_proto, models))


def models_from_proto(message: inference_pb2.ListModelsResponse) -> list[ModelInfo]:
    """Return the models of a message."""
    return list(map(model_info_from_proto, message.models))


def cluster_to_proto(cells: Iterable[CellStatus]) -> inference_pb2.WatchClusterResponse:
    """Return the message of the cells that a router knows."""
    return inference_pb2.WatchClusterResponse(cells=map(cell_status_to_proto, cells))


def cluster_from_proto(message: inference_pb2.WatchClusterResponse) -> list[CellStatus]:
    """Return the cells of a message."""
    return list(map(cell_status_from_proto, message.cells))


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


def heartbeat_to_proto() -> inference_pb2.GenerateResponse:
    """Return the response that only shows that the router is alive."""
    return inference_pb2.GenerateResponse(heartbeat=inference_pb2.GenerateHeartbeat())


def is_heartbeat(message: inference_pb2.GenerateResponse) -> bool:
    """Return whether a response only shows that the router is alive."""
    return message.HasField("heartbeat")


def event_to_proto(event: Event) -> inference_pb2.GenerateResponse:
    """Return the response that carries an event of a Generate stream."""
    match event:
        case Started():
            fields = fields_of(event)
            fields["structured_outputs"] = structured_outputs_to_proto(event.structured_outputs)
            filled: Any = dict(event.sampling_defaults)
            defaults = inference_pb2.SamplingDefaults(**filled)
            fields["sampling_defaults"] = defaults if event.sampling_defaults else None
            started = inference_pb2.GenerateStarted(**fields)
            return inference_pb2.GenerateResponse(started=started)
        case Delta():
            # One for nearly every token: filled in place, a field at a time, since a constructor
            # and empty lists take twice as long as all the rest.
            response = inference_pb2.GenerateResponse()
            delta = response.delta
            delta.text = event.text
            delta.index = event.index
            delta.token_ids.extend(event.token_ids)
            if event.logprobs:
                delta.logprobs.extend(map(token_logprobs_to_proto, event.logprobs))
            if event.prompt_logprobs:
                delta.prompt_logprobs.extend(map(token_logprobs_to_proto, event.prompt_logprobs))
            if event.parsed is not None:
                delta.parsed.CopyFrom(parsed_output_to_proto(event.parsed))
            return response
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
                parsed=None if event.parsed is None else parsed_output_to_proto(event.parsed),
                num_cached_tokens=event.num_cached_tokens,
            )
            return inference_pb2.GenerateResponse(finished=finished)


def event_from_proto(message: inference_pb2.GenerateResponse) -> Event:
    """Return the event that a response carries.

    Raises:
        ValueError: the response carries none that is known here.
    """
    match message.WhichOneof("event"):
        case "started":
            # Absent is not this release's, the default.
            started = message.started
            return from_fields(
                Started,
                started,
                protocol_version=started.protocol_version,
                structured_outputs=structured_outputs_from_proto(started),
                sampling_defaults={
                    field.name: value for field, value in started.sampling_defaults.ListFields()
                },
            )
        case "delta":
            delta = message.delta
            return Delta(
                delta.text,
                tuple(delta.token_ids),
                tuple(map(token_logprobs_from_proto, delta.logprobs)),
                delta.index,
                tuple(map(token_logprobs_from_proto, delta.prompt_logprobs)),
                parsed=parsed_output_from_proto(delta.parsed) if delta.HasField("parsed") else None,
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
                parsed_output_from_proto(finished.parsed) if finished.HasField("parsed") else None,
                num_cached_tokens=finished.num_cached_tokens,
            )
        case other:
            raise ValueError(f"unknown event {other!r} in a GenerateResponse")
