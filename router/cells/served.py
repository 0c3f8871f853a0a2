"""Which model a request may run on, of those that the cells serve, and why it runs nowhere."""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from quire.contract.errors import (
    ModelNotFoundError,
    NoCellError,
    NumericsDifferError,
    NumericsLostError,
)
from quire.contract.outputs import ModelInfo
from quire.contract.versions import UNVERSIONED
from router.requests.stream import RequestStream


class ServingCell(Protocol):
    """A cell that is known, connected or not."""

    @property
    def model(self) -> ModelInfo | None:
        """Its model, the last known one; None until the first session."""
        ...

    @property
    def connected(self) -> bool:
        """Whether it has a session."""
        ...

    @property
    def protocol_version(self) -> int:
        """Of its scheduler, in the last session."""
        ...


CellT = TypeVar("CellT", bound=ServingCell)


def served_models(cells: Iterable[ServingCell], with_vectors: bool = False) -> Sequence[ModelInfo]:
    """Return one model of each name and numerics id, of the largest max_model_len.

    A request goes where it fits.

    Args:
        cells: of which those count that are connected.
        with_vectors: whether to leave out the cells that give none, if any of their model gives
            some. Those are of an earlier release, and may be larger.
    """
    models = [cell.model for cell in cells if cell.connected and cell.model]
    if with_vectors:
        names = {model.name for model in models if model.embedding_size}
        models = [each for each in models if each.embedding_size or each.name not in names]
    longest_last = sorted(models, key=lambda model: (model.max_model_len, model.embedding_size))
    return [*{(model.name, model.numerics_id): model for model in longest_last}.values()]


def find_served(
    cells: Collection[ServingCell], name: str, numerics_id: str | None, with_vectors: bool
) -> ModelInfo | None:
    """Return the model of a name, None while a cell that may serve it is not connected.

    Args:
        cells: all that are known.
        name: that requests use, "" for the only one.
        numerics_id: that it must have; None for any.
        with_vectors: see `served_models`; a cell that gives them is waited for as well.

    Raises:
        ModelNotFoundError: it is not served here.
        NumericsDifferError: it is, and not with this numerics id.
    """
    models = served_models(cells, with_vectors)
    if not models:
        return None
    names = dict.fromkeys(model.name for model in models)
    if not name and len(names) == 1:
        (name,) = names
    elif name not in names:
        name = next((model.name for model in models if name in model.aliases), name)

    def fits(model: ModelInfo) -> bool:
        return model.name == name and numerics_id in (None, model.numerics_id)

    if fitting := [model for model in models if fits(model)]:
        best = max(fitting, key=lambda model: model.max_model_len)
        if with_vectors and not best.embedding_size:
            known = [cell.model for cell in cells if cell.model and fits(cell.model)]
            if any(model.embedding_size for model in known):  # of a cell that is lost
                return None
        return best
    if any(cell.model is None or fits(cell.model) for cell in cells):
        return None
    if name in names:
        served = ", ".join(model.numerics_id or "none" for model in models if model.name == name)
        raise NumericsDifferError(
            f"numerics_id: must be one that {name} is served with ({served}), "
            f"got {numerics_id or 'none'}"
        )
    all_names = [each for model in models for each in (model.name, *model.aliases)]
    served = ", ".join(dict.fromkeys(all_names))
    wrong = f"{name} is not served" if name else "required, several are served"
    raise ModelNotFoundError(f"model: {wrong}; served: {served}")


def may_continue(cell: ServingCell, stream: RequestStream) -> bool:
    """Return whether a stream that has begun keeps its tokens at a cell, to the last one."""
    model = cell.model
    return (
        model is not None
        and model.numerics_id == stream.numerics_id
        and model.max_model_len >= stream.max_num_tokens
    )


def unfit(cells: Iterable[CellT], stream: RequestStream, text_id: str) -> Collection[CellT]:
    """Return the cells that would change the tokens of a stream, or ignore what it asks for.

    Args:
        cells: with or without a session.
        stream: to be placed.
        text_id: of this router.
    """
    has_grammar = stream.sampling_params.structured_outputs is not None
    has_vector = stream.request.pooling_params is not None
    if not (stream.has_begun or has_grammar or has_vector):
        return ()
    return [
        cell
        for cell in cells
        if (stream.has_begun and not may_continue(cell, stream))
        or (has_grammar and not _obeys_grammars(cell, text_id))
        # Of an earlier release, which would send tokens.
        or (has_vector and not (cell.model and cell.model.embedding_size))
    ]


def _obeys_grammars(cell: ServingCell, text_id: str) -> bool:
    """Return whether a cell allows by a grammar what this router means by it."""
    # A scheduler from before there were versions does not pass grammars on.
    is_passed_on = cell.protocol_version != UNVERSIONED
    return is_passed_on and cell.model is not None and cell.model.text_id == text_id


def unavailable(waited_s: float) -> NoCellError:
    """Return the error of a request that no scheduler took in time."""
    return NoCellError(f"no scheduler is reachable (waited {waited_s:g} s)")


def numerics_lost(stream: RequestStream, waited_s: float) -> NumericsLostError:
    """Return the error of a stream that no cell could continue in time."""
    return NumericsLostError(
        f"numerics_id: must be {stream.numerics_id or 'absent'} to continue this stream with the "
        f"same tokens, but no such cell with a max_model_len of {stream.max_num_tokens} or more is "
        f"left that serves {stream.request.model.name} (waited {waited_s:g} s); the request may be "
        "sent again"
    )
