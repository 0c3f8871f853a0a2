"""Room for the workers in a Ray cluster: one bundle of resources for each rank."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import ConfigError, UnavailableError

STRICT_PACK_TIMEOUT_S = 10.0
PACK_TIMEOUT_S = 60.0

Resources = Mapping[str, float]


def choose_bundle(
    device: str, cpus: int, size: int, nodes: Sequence[Resources]
) -> dict[str, float]:
    """Return the resources of one worker.

    Args:
        device: "cpu", "cuda", or "auto" for a GPU each if the cluster has enough of them.
        cpus: for each worker.
        size: number of workers.
        nodes: what each node of the cluster has in all.
    """
    gpus = sum(node.get("GPU", 0) for node in nodes)
    takes_gpu = device == "cuda" or (device == "auto" and gpus >= size)
    return {"CPU": float(cpus), **({"GPU": 1.0} if takes_gpu else {})}


def choose_strategies(
    bundle: Resources, size: int, nodes: Sequence[Resources]
) -> list[tuple[str, float]]:
    """Return the placement strategies to try, each with the seconds to wait for it.

    Ranks exchange activations in every layer, so one node is better than several.

    Raises:
        ConfigError: the cluster could not hold the workers if it did nothing else.
    """
    room = [
        min(math.floor(node.get(kind, 0) / amount) for kind, amount in bundle.items())
        for node in nodes
    ]
    if sum(room) < size:
        raise ConfigError(
            f"--launcher ray: {size} workers of {_text(bundle)} each can never be placed: the Ray "
            f"cluster has {_text_of_all(nodes)}"
        )
    strict = [("STRICT_PACK", STRICT_PACK_TIMEOUT_S)] if max(room) >= size else []
    return [*strict, ("PACK", PACK_TIMEOUT_S)]


def place(bundle: Resources, size: int, nodes: Sequence[Resources]) -> Any:
    """Return a placement group that Ray has made room for. Blocks for up to a minute or so.

    Raises:
        ConfigError: the cluster could not hold the workers if it did nothing else.
        UnavailableError: others use it, and did not end in time.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    for strategy, timeout_s in choose_strategies(bundle, size, nodes):
        group = placement_group([dict(bundle)] * size, strategy=strategy)
        if group.wait(timeout_s):
            return group
        remove_placement_group(group)
    raise UnavailableError(
        f"--launcher ray: no room for {size} workers of {_text(bundle)} each within "
        f"{PACK_TIMEOUT_S:g} s: the Ray cluster has {_text_of_all(nodes)}, of which "
        f"{_text(ray.available_resources())} are free"
    )


def _text(resources: Resources) -> str:
    kinds = {kind: resources[kind] for kind in ("CPU", "GPU") if kind in resources}
    return json.dumps({kind: round(amount, 3) for kind, amount in kinds.items()})


def _text_of_all(nodes: Sequence[Resources]) -> str:
    return f"{len(nodes)} nodes with " + ", ".join(map(_text, nodes))
