"""Room for the workers in a Ray cluster: one bundle of resources for each rank."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from launch.launchers.ray_thread import RayThread
from quire.contract.errors import ConfigError, UnavailableError

STRICT_PACK_TIMEOUT_S = 10.0
PACK_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 30.0

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


@dataclass(frozen=True, slots=True)
class Placement:
    """Room that Ray has made.

    Attributes:
        group: Ray's placement group, with one bundle for each rank.
        node_ids: the node of each bundle.
    """

    group: Any
    node_ids: tuple[str, ...]


async def place(
    bundle: Resources, size: int, nodes: Sequence[Resources], thread: RayThread
) -> Placement:
    """Have Ray make room.

    Args:
        bundle: resources of one worker.
        size: number of workers.
        nodes: what each node of the cluster has in all.
        thread: that calls into Ray.

    Raises:
        ConfigError: the cluster could not hold the workers if it did nothing else.
        UnavailableError: others use it, and did not end in time.
    """
    import ray
    from ray.util.placement_group import (
        placement_group,
        placement_group_table,
        remove_placement_group,
    )

    for strategy, timeout_s in choose_strategies(bundle, size, nodes):
        make = partial(placement_group, [dict(bundle)] * size, strategy=strategy)
        group = await thread.call(make, CALL_TIMEOUT_S, "placing workers")
        try:
            async with asyncio.timeout(timeout_s):
                # In short calls, so that an interrupt need not wait for Ray.
                while not await thread.call(partial(group.wait, 1), CALL_TIMEOUT_S, "placing"):
                    pass
        except TimeoutError:
            remove = partial(remove_placement_group, group)
            await thread.call(remove, CALL_TIMEOUT_S, "giving room back")
        else:
            ask = partial(placement_group_table, group)
            table = await thread.call(ask, CALL_TIMEOUT_S, "placing workers")
            return Placement(group, tuple(table["bundles_to_node_id"].values()))
    free = await thread.call(ray.available_resources, CALL_TIMEOUT_S, "asking what is free")
    raise UnavailableError(
        f"--launcher ray: no room for {size} workers of {_text(bundle)} each within "
        f"{PACK_TIMEOUT_S:g} s: the Ray cluster has {_text_of_all(nodes)}, of which {_text(free)} "
        "are free"
    )


def check_host(host: str, here: str, nodes: Sequence[str]) -> None:
    """Refuse an address that workers elsewhere cannot reach.

    Args:
        host: that the scheduler listens on.
        here: address of this machine in the Ray cluster.
        nodes: address of the node of each worker.

    Raises:
        ConfigError: the scheduler listens on the loopback, and some are on other machines.
    """
    elsewhere = sorted(set(nodes) - {here})
    if elsewhere and (host == "localhost" or host.startswith("127.") or host in ("::1", "[::1]")):
        raise ConfigError(
            f"--host: workers on {', '.join(elsewhere)} cannot reach the scheduler at {host}; "
            f"this machine is {here}"
        )


def _text(resources: Resources) -> str:
    kinds = {kind: resources[kind] for kind in ("CPU", "GPU") if kind in resources}
    return json.dumps({kind: round(amount, 3) for kind, amount in kinds.items()})


def _text_of_all(nodes: Sequence[Resources]) -> str:
    return f"{len(nodes)} nodes with " + ", ".join(map(_text, nodes))
