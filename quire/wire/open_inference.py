"""To and from the messages of the Open Inference Protocol, in protos/quire/facades."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from quire import finite_json
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput
from quire.facades import open_inference_pb2 as pb
from quire.v1 import common_pb2
from quire.wire.common import sampling_params_from_proto
from quire.wire.open_inference_models import INPUTS, OUTPUTS, VERSION, names_of

MAX_PARAMETERS_BYTES = 65_536
MAX_INPUTS = 16
MAX_ID_CHARS = 128
FINAL_RESPONSE = "triton_final_response"

# Format of struct of an element, and the field of InferTensorContents.
_ELEMENTS = {
    "BOOL": ("?", "bool_contents"),
    "INT32": ("i", "int_contents"),
    "INT64": ("q", "int64_contents"),
}
# Parameters of a request that are not sampling parameters.
_OWN_PARAMETERS = {
    *("stream", "exclude_input_in_output", "priority", "cache_salt"),
    # The last response is never empty here.
    "triton_enable_empty_final_response",
}


@dataclass(frozen=True, slots=True)
class InferInput:
    """A request of the Open Inference Protocol.

    Attributes:
        request: what is to be generated.
        id: comes back with each response.
        stream: whether pieces are asked for.
        echo: whether the prompt comes before the text.
        outputs: names of the outputs that are asked for.
    """

    request: GenerateInput
    id: str
    stream: bool
    echo: bool
    outputs: frozenset[str]


@dataclass(frozen=True, slots=True)
class InferOutput:
    """Part or the whole of an answer.

    Attributes:
        texts: of each output of the request.
        finish_reasons: of each; empty where it goes on.
        token_ids: of the only output; None where there are several.
    """

    texts: Sequence[str]
    finish_reasons: Sequence[str] = ()
    token_ids: Sequence[int] | None = None


def infer_input_from_proto(message: pb.ModelInferRequest) -> InferInput:
    """Return the request of a message.

    Raises:
        InvalidRequestError: a tensor or a parameter is not as ModelMetadata describes it.
    """
    if len(message.id) > MAX_ID_CHARS:
        raise InvalidRequestError(
            "id", f"must be at most {MAX_ID_CHARS} characters, got {len(message.id)}"
        )
    values = _tensors(message)
    own = {name: _parameter(each) for name, each in message.parameters.items()}
    if ("text_input" in values) == ("token_ids" in values):
        raise InvalidRequestError("inputs", "must have either text_input or token_ids")
    prompt = _text(values, "text_input") if "text_input" in values else values["token_ids"]
    stream = _flag(values, own, "stream", False)
    outputs = frozenset(each.name for each in message.outputs) or names_of(OUTPUTS)
    if unknown := outputs - names_of(OUTPUTS):
        raise InvalidRequestError("outputs", f"must be of {_listed(OUTPUTS)}, got {min(unknown)}")
    # As with the engines of that protocol: a text that is not streamed begins with its prompt.
    excluded = _flag(values, own, "exclude_input_in_output", stream)
    if stream and not excluded:
        raise InvalidRequestError("exclude_input_in_output", "must be true with stream")
    request = GenerateInput(
        prompt,
        _sampling_params(_text(values, "sampling_parameters"), own),
        model=message.model_name,
        priority=_integer(own, "priority"),
        cache_salt=str(own.get("cache_salt", "")),
    )
    if stream and request.sampling_params.n > 1:
        raise InvalidRequestError("n", f"must be 1 with stream, got {request.sampling_params.n}")
    return InferInput(request, message.id, stream, not excluded, outputs)


def infer_output_to_proto(
    output: InferOutput, sent: InferInput, model: str, *, is_final: bool | None = None
) -> pb.ModelInferResponse:
    """Return the response that carries part or the whole of an answer.

    Args:
        output: the part.
        sent: the request.
        model: that the request named.
        is_final: of a stream, whether it is the request's last; None for a call of its own.
    """
    message = pb.ModelInferResponse(model_name=model, model_version=VERSION, id=sent.id)
    if is_final is not None:
        message.parameters[FINAL_RESPONSE].bool_param = is_final

    def add(name: str, datatype: str, length: int, raw: bytes) -> None:
        if name in sent.outputs:
            message.outputs.add(name=name, datatype=datatype, shape=[length])
            message.raw_output_contents.append(raw)

    add("text_output", "BYTES", len(output.texts), _raw_texts(output.texts))
    if output.finish_reasons:
        reasons = output.finish_reasons
        add("finish_reason", "BYTES", len(reasons), _raw_texts(reasons))
    if output.token_ids is not None:
        ids = output.token_ids
        add("token_ids", "INT64", len(ids), struct.pack(f"<{len(ids)}q", *ids))
    return message


def _listed(tensors: Sequence[tuple[str, str, list[int]]]) -> str:
    return ", ".join(name for name, _, _ in tensors)


def _tensors(message: pb.ModelInferRequest) -> dict[str, Any]:
    """Return the elements of each input by its name."""
    if len(message.inputs) > MAX_INPUTS:
        raise InvalidRequestError(
            "inputs", f"must have at most {MAX_INPUTS} items, got {len(message.inputs)}"
        )
    raws = message.raw_input_contents
    if raws and len(raws) != len(message.inputs):
        raise InvalidRequestError(
            "raw_input_contents", f"must have {len(message.inputs)} items, got {len(raws)}"
        )
    values: dict[str, Any] = {}
    for i, tensor in enumerate(message.inputs):
        if tensor.name not in names_of(INPUTS):
            raise InvalidRequestError("inputs", f"must be of {_listed(INPUTS)}, got {tensor.name}")
        if tensor.name in values:
            raise InvalidRequestError(tensor.name, "must be given once, got it again")
        values[tensor.name] = _elements(tensor, raws[i] if raws else None)
    return values


def _elements(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Sequence[Any]:
    name = tensor.name
    expected = next(datatype for each, datatype, _ in INPUTS if each == name)
    allowed = ("INT64", "INT32") if expected == "INT64" else (expected,)
    if tensor.datatype not in allowed:
        raise InvalidRequestError(
            name, f"must be of datatype {' or '.join(allowed)}, got {tensor.datatype!r}"
        )
    if tensor.datatype == "BYTES":
        texts = tensor.contents.bytes_contents if raw is None else _split(name, raw)
        elements: Sequence[Any] = texts
    else:
        code, contents = _ELEMENTS[tensor.datatype]
        size = struct.calcsize(f"<{code}")
        if raw is None:
            elements = list(getattr(tensor.contents, contents))
        elif len(raw) % size:
            raise InvalidRequestError(name, f"must have a multiple of {size} bytes, got {len(raw)}")
        else:
            elements = struct.unpack(f"<{len(raw) // size}{code}", raw)
    # A batch of one may have a dimension of its own.
    shape = list(tensor.shape)
    if shape not in ([len(elements)], [1, len(elements)]):
        raise InvalidRequestError(name, f"must have the shape [{len(elements)}], got {shape}")
    if name != "token_ids" and len(elements) != 1:
        raise InvalidRequestError(name, f"must have 1 element, got {len(elements)}")
    return elements


def _split(name: str, raw: bytes) -> list[bytes]:
    """Return the elements of a tensor of BYTES; of more than one, the first two."""
    elements: list[bytes] = []
    begin = 0
    while begin < len(raw) and len(elements) < 2:
        if begin + 4 > len(raw):
            raise InvalidRequestError(name, "must have elements behind lengths of 4 bytes")
        (length,) = struct.unpack_from("<I", raw, begin)
        begin += 4 + length
        if begin > len(raw):
            raise InvalidRequestError(
                name, f"must hold the {length} bytes of its element, got {len(raw)} in all"
            )
        elements.append(raw[begin - length : begin])
    return elements


def _raw_texts(texts: Sequence[str]) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _text(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return ""
    try:
        return str(values[name][0], "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(name, f"must be UTF-8, got {error.reason}") from None


def _parameter(value: pb.InferParameter) -> bool | int | float | str | None:
    which = value.WhichOneof("parameter_choice")
    return None if which is None else getattr(value, which)


def _flag(values: dict[str, Any], own: dict[str, Any], name: str, default: bool) -> bool:
    value = values[name][0] if name in values else own.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequestError(name, f"must be a bool, got {value!r}")
    return value


def _integer(own: dict[str, Any], name: str) -> int:
    value = own.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(name, f"must be an integer, got {value!r}")
    return value


def _sampling_params(text: str, own: dict[str, Any]) -> Any:
    """Return sampling parameters of a JSON object, over which those of the request's own go."""
    field = "sampling_parameters"
    if len(text) > MAX_PARAMETERS_BYTES:
        raise InvalidRequestError(
            field, f"must be at most {MAX_PARAMETERS_BYTES} characters, got {len(text)}"
        )
    try:
        fields = finite_json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise InvalidRequestError(field, "must be a JSON object, got something else") from None
    if not isinstance(fields, dict):
        raise InvalidRequestError(field, "must be a JSON object, got something else")
    fields |= {name: value for name, value in own.items() if name not in _OWN_PARAMETERS}
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    message = common_pb2.SamplingParams()
    try:
        json_format.ParseDict(fields, message)
    except (json_format.ParseError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidRequestError(
            field, f"must be fields of quire.v1.SamplingParams, got: {reason}"
        ) from None
    return sampling_params_from_proto(message)
