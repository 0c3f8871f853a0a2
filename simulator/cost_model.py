"""How long a worker takes for a step, from what the step computes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from quire.contract.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step computes, as far as its duration depends on it.

    Attributes:
        num_tokens: computed, over all sequences.
        num_sequences: in the batch.
        num_context_tokens: whose keys and values are read: lengths of all sequences, summed.
        num_attention_pairs: (query, key) pairs of the chunks of more than one token.
        num_moved_blocks: between device and host.
    """

    num_tokens: int
    num_sequences: int
    num_context_tokens: int
    num_attention_pairs: int = 0
    num_moved_blocks: int = 0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Microseconds of a step, as a sum over what it computes.

    Weights are read once in a step, however many tokens it computes, and a GPU computes while it
    reads: below some number of tokens only `weights_us` counts, above it only `token_us`. A model
    that was fitted to measured steps has no such floor: `base_us` is all that does not depend on
    the batch.

    Attributes:
        name: of the model and the machine.
        source: "measured" or "computed", and how.
        base_us: of every step.
        weights_us: the least that the dense layers take.
        token_us: of each token in the dense layers.
        sequence_us: of each sequence: sampling, tables.
        context_us: of each token of context.
        pair_us: of each (query, key) pair of a prompt's chunk.
        moved_block_us: of each block moved between device and host.
        dispatch_us: from the scheduler's decision to the worker's start, unless the step before
            hides it.
        request_us: from a client's request to the scheduler's queue.
        answer_us: from the end of a step until the client has its tokens.
    """

    name: str
    source: str
    base_us: float
    weights_us: float = 0.0
    token_us: float = 0.0
    sequence_us: float = 0.0
    context_us: float = 0.0
    pair_us: float = 0.0
    moved_block_us: float = 0.0
    dispatch_us: float = 500.0
    request_us: float = 1000.0
    answer_us: float = 1000.0

    def __post_init__(self) -> None:
        for field, value in self.prices.items():
            if value < 0:
                raise ConfigError(f"{field}: must be at least 0, got {value}")
        if not self.step_us(StepShape(1, 1, 1)) > 0:
            raise ConfigError("base_us: must make a step of one token longer than 0, got 0")

    @property
    def prices(self) -> Mapping[str, float]:
        """All fields that are microseconds, by name."""
        return {name: value for name, value in asdict(self).items() if name.endswith("_us")}

    def step_us(self, shape: StepShape) -> float:
        """Return how long a step takes, in microseconds."""
        return (
            self.base_us
            + max(self.weights_us, self.token_us * shape.num_tokens)
            + self.sequence_us * shape.num_sequences
            + self.context_us * shape.num_context_tokens
            + self.pair_us * shape.num_attention_pairs
            + self.moved_block_us * shape.num_moved_blocks
        )


def save(model: CostModel, path: Path) -> None:
    """Write a cost model as JSON."""
    path.write_text(json.dumps(asdict(model), indent=2) + "\n")


def load(path: Path) -> CostModel:
    """Read a cost model that `save` wrote.

    Raises:
        ConfigError: the file is missing, is not JSON, or a field of it is missing or wrong.
    """
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cost model {path}: cannot be read: {error}") from error
    known = {field.name: field for field in fields(CostModel)}
    if not isinstance(values, dict) or not values.keys() <= known.keys():
        raise ConfigError(
            f"cost model {path}: must be an object with fields among {', '.join(known)}"
        )
    for name in ("name", "source", "base_us"):
        if name not in values:
            raise ConfigError(f"cost model {path}: {name}: must be given, got none")
    for name, value in values.items():
        if name.endswith("_us") and not isinstance(value, int | float):
            raise ConfigError(f"cost model {path}: {name}: must be a number, got {value!r}")
    return CostModel(**values)
