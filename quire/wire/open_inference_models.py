"""What a model is and has done, in the messages of the Open Inference Protocol and of Triton."""

from collections.abc import Sequence

from quire.contract.model_statistics import ModelStatistics
from quire.facades import open_inference_pb2 as pb

VERSION = "1"

# Inputs and outputs: name, datatype, shape.
INPUTS = (
    ("text_input", "BYTES", [1]),
    ("token_ids", "INT64", [-1]),
    ("sampling_parameters", "BYTES", [1]),
    ("stream", "BOOL", [1]),
    ("exclude_input_in_output", "BOOL", [1]),
)
OUTPUTS = (
    ("text_output", "BYTES", [-1]),
    ("finish_reason", "BYTES", [-1]),
    ("token_ids", "INT64", [-1]),
)
_DATA_TYPES = {"BYTES": pb.TYPE_STRING, "INT64": pb.TYPE_INT64, "BOOL": pb.TYPE_BOOL}


def names_of(tensors: Sequence[tuple[str, str, list[int]]]) -> frozenset[str]:
    """Return the names of inputs or outputs."""
    return frozenset(name for name, _, _ in tensors)


def model_metadata_to_proto(model: str) -> pb.ModelMetadataResponse:
    """Return what a model takes and gives."""
    message = pb.ModelMetadataResponse(name=model, versions=[VERSION], platform="quire")
    for fields, tensors in ((message.inputs, INPUTS), (message.outputs, OUTPUTS)):
        for name, datatype, shape in tensors:
            fields.add(name=name, datatype=datatype, shape=shape)
    return message


def model_config_to_proto(model: str) -> pb.ModelConfigResponse:
    """Return a model's configuration as Triton has it: each request is a batch of its own."""
    config = pb.ModelConfig(name=model, platform="quire", backend="quire", max_batch_size=0)
    config.model_transaction_policy.decoupled = True
    for name, datatype, dims in INPUTS:
        config.input.add(
            name=name,
            data_type=_DATA_TYPES[datatype],
            dims=dims,
            # A prompt is one of the first two.
            optional=True,
        )
    for name, datatype, dims in OUTPUTS:
        config.output.add(name=name, data_type=_DATA_TYPES[datatype], dims=dims)
    return pb.ModelConfigResponse(config=config)


def model_statistics_to_proto(model: str, found: ModelStatistics) -> pb.ModelStatistics:
    """Return what became of a model's requests."""
    message = pb.ModelStatistics(
        name=model,
        version=VERSION,
        last_inference=round(1e3 * found.last_s),
        inference_count=found.num_finished,
        execution_count=found.num_finished,
    )
    stats = message.inference_stats
    for duration, count, seconds in (
        (stats.success, found.num_finished, found.whole_s),
        (stats.fail, found.num_failed, 0.0),
        (stats.queue, found.num_queued, found.queue_s),
        (stats.compute_infer, found.num_finished, found.computed_s),
    ):
        duration.count, duration.ns = count, round(1e9 * seconds)
    return message
