"""To and from the messages of recording.proto, and their bytes in a file."""

import io
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from quire.contract.recording import Content, EpochHeader, Record
from quire.contract.steps import SchedulerOutputs
from quire.v1 import recording_pb2, worker_pb2
from quire.wire.caches import (
    cache_spec_from_proto,
    cache_spec_to_proto,
    host_cache_from_proto,
    host_cache_to_proto,
)
from quire.wire.fields import from_fields
from quire.wire.worker import (
    load_request_from_proto,
    load_request_to_proto,
    load_response_from_proto,
    load_response_to_proto,
    scheduler_outputs_from_proto,
    scheduler_outputs_to_proto,
    step_result_from_proto,
    step_result_to_proto,
)


def record_to_proto(record: Record) -> recording_pb2.Record:
    """Return the message of a record."""
    content = record.content
    message = recording_pb2.Record(monotonic_ns=record.monotonic_ns, num_dropped=record.num_dropped)
    if isinstance(content, EpochHeader):
        message.header.CopyFrom(_header_to_proto(content))
    elif isinstance(content, bytes):
        request = worker_pb2.ExecuteRequest.FromString(content)
        message.scheduler_outputs.CopyFrom(request.scheduler_outputs)
    elif isinstance(content, SchedulerOutputs):
        message.scheduler_outputs.CopyFrom(scheduler_outputs_to_proto(content))
    else:
        message.result.CopyFrom(step_result_to_proto(content))
    return message


def record_from_proto(message: recording_pb2.Record) -> Record:
    """Return the record of a message.

    Raises:
        QuireError: a value is out of bounds.
    """
    kind = message.WhichOneof("content")
    content: Content
    if kind == "header":
        content = _header_from_proto(message.header)
    elif kind == "scheduler_outputs":
        content = scheduler_outputs_from_proto(message.scheduler_outputs)
    else:
        content = step_result_from_proto(message.result)
    return Record(message.monotonic_ns, message.num_dropped, content)


def serialize_record(record: Record, *, with_tokens: bool) -> bytes:
    """Return a record as it stands in a file, without the salt of any request.

    Args:
        record: the record.
        with_tokens: whether to keep tokens, sampling parameters, log-probabilities and vectors.
    """
    message = record_to_proto(record)
    for state in message.scheduler_outputs.new_sequences:
        state.ClearField("cache_salt")
    if not with_tokens:
        _strip_tokens(message)
    output = io.BytesIO()
    serialize_length_prefixed(message, output)
    return output.getvalue()


def parse_records(data: bytes) -> Iterator[Record]:
    """Yield the records of a file, up to one that was not written to its end.

    Raises:
        QuireError: a value is out of bounds.
    """
    stream = io.BytesIO(data)
    while True:
        try:
            message = parse_length_prefixed(recording_pb2.Record, stream)
        except (DecodeError, ValueError):
            return
        if message is None or message.WhichOneof("content") is None:
            return
        yield record_from_proto(message)


def _strip_tokens(message: recording_pb2.Record) -> None:
    """Keep how many tokens there are, and of which sequences, alone."""
    if message.WhichOneof("content") == "scheduler_outputs":
        outputs = message.scheduler_outputs
        outputs.chosen_token_ids[:] = [0] * len(outputs.chosen_token_ids)
        for state in outputs.new_sequences:
            state.token_ids[:] = [0] * len(state.token_ids)
            state.sampling_params.Clear()
            state.sampling_params.seed = 0
    elif message.WhichOneof("content") == "result":
        result = message.result
        result.token_ids[:] = [0] * len(result.token_ids)
        del result.logprobs[:], result.prompt_logprobs[:], result.vectors[:]


def _header_to_proto(header: EpochHeader) -> recording_pb2.EpochHeader:
    return recording_pb2.EpochHeader(
        version=header.version,
        unix_ns=header.unix_ns,
        file_index=header.file_index,
        has_tokens=header.has_tokens,
        load=load_request_to_proto(header.load),
        loaded=load_response_to_proto(header.loaded),
        cache=cache_spec_to_proto(header.epoch, header.cache),
        host_cache=host_cache_to_proto(header.host_cache),
        previous_epoch=header.previous_epoch,
        previous_step_id=header.previous_step_id,
    )


def _header_from_proto(message: recording_pb2.EpochHeader) -> EpochHeader:
    return from_fields(
        EpochHeader,
        message,
        load=load_request_from_proto(message.load),
        loaded=load_response_from_proto(message.loaded),
        cache=cache_spec_from_proto(message.cache),
        host_cache=host_cache_from_proto(message.host_cache),
    )
