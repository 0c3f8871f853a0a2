"""Progress of a resize, to and from protobuf."""

from quire.contract.resizing import ResizePhase, ResizeProgress
from quire.v1 import scheduler_pb2

_PREFIX = "RESIZE_PHASE_"


def resize_progress_to_proto(progress: ResizeProgress) -> scheduler_pb2.ResizeResponse:
    """Return the message of how far a resize is."""
    return scheduler_pb2.ResizeResponse(
        phase=scheduler_pb2.ResizePhase.Value(_PREFIX + progress.phase.name),
        num_moved=progress.num_moved,
        gap_ms=round(1e3 * progress.gap_s),
    )


def resize_progress_from_proto(message: scheduler_pb2.ResizeResponse) -> ResizeProgress:
    """Return how far a resize is.

    Raises:
        KeyError: the phase is of another release.
    """
    phase = scheduler_pb2.ResizePhase.Name(message.phase).removeprefix(_PREFIX)
    return ResizeProgress(ResizePhase[phase], message.num_moved, message.gap_ms / 1e3)
