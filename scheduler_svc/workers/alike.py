"""What workers must have in common, with each other and with those before them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.contract.errors import ConfigError
from quire.contract.outputs import ModelInfo
from quire.contract.workers import WorkerDescription


def check_gpus(descriptions: Sequence[WorkerDescription]) -> None:
    """Check that all ranks plan steps alike: they capture the same ones, or wait for each other.

    Raises:
        ConfigError: their GPUs are of several kinds.
    """
    ranks = {description.gpu: rank for rank, description in enumerate(descriptions)}
    if len(ranks) > 1:
        found = " and ".join(f"{gpu or 'a CPU'} (rank {rank})" for gpu, rank in ranks.items())
        raise ConfigError(f"workers: must have GPUs of one kind, got {found}")


def is_same(model: ModelInfo, before: ModelInfo) -> bool:
    """Return whether workers go on with the model that others, or another rank, have loaded.

    Files of the tokenizer are the routers' affair, and workers of an earlier release report nothing
    of vectors: during an upgrade, or one that is taken back, they meet later ones.
    """
    others: dict[str, Any] = {"text_id": ""}
    if not (model.embedding_size and before.embedding_size):
        others |= {"embedding_size": 0, "is_matryoshka": False, "matryoshka_dimensions": ()}
    return replace(model, **others) == replace(before, **others)


def described_as(loaded: ModelInfo, model: ModelInfo) -> ModelInfo:
    """Return a model with all that `is_same` leaves open as workers that loaded it report it."""
    return replace(
        model,
        text_id=loaded.text_id,
        embedding_size=loaded.embedding_size,
        is_matryoshka=loaded.is_matryoshka,
        matryoshka_dimensions=loaded.matryoshka_dimensions,
    )
