"""What makes pods: selectors, labels, probes, resources, images, disruption budgets, spreading."""

import re
from collections.abc import Iterator
from typing import Any

from tools.manifests.objects import (
    CELL_LABEL,
    NAME_LABEL,
    PART_OF_LABEL,
    PICKER,
    PULL,
    Finding,
    Manifests,
    Object,
    PodTemplate,
    matches,
    where,
)

COMMANDS = ("router", "scheduler", "worker")
NO_CELL = ("router", PICKER)
PROBES = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
# A model is loaded, and CUDA graphs captured, in this time; liveness is not asked before.
MIN_STARTUP_S = 120
_PINNED = re.compile(r"[^:@\s]+(:\d+)?(/[^:@\s]+)*(:(?!latest$)[\w][\w.-]*|@sha256:[0-9a-f]{64})")


def check_workloads(manifests: Manifests) -> Iterator[Finding]:
    """Each pod has labels of its own, is watched, is bounded, and is of a known version."""
    for pod in manifests.pods:
        for rule, advice in [
            *_labels(pod),
            *_containers(pod),
            *_spreading(pod),
            *_update(pod.owner),
        ]:
            yield Finding(pod.where, rule, advice)
    yield from _budgets(manifests)


def _labels(pod: PodTemplate) -> Iterator[tuple[str, str]]:
    if pod.command not in ((PULL,) if pod.ends else (*COMMANDS, PICKER)):
        named = f"quire-{PULL}" if pod.ends else "quire-router, -scheduler or -worker"
        yield "labels", f"label its pods {NAME_LABEL}: {named}"
    if pod.labels.get(PART_OF_LABEL) != "quire":
        yield "labels", f"label its pods {PART_OF_LABEL}: quire"
    if pod.owner["kind"] not in ("Deployment", "StatefulSet"):
        return
    selector = pod.owner["spec"].get("selector", {})
    if not matches(selector, pod.labels):
        yield "selector", "make its selector match the labels of its template"
    if pod.command not in NO_CELL and CELL_LABEL not in selector.get("matchLabels", {}):
        yield "selector", f"select by {CELL_LABEL} too, or it takes the pods of other cells"


def _containers(pod: PodTemplate) -> Iterator[tuple[str, str]]:
    for container in pod.containers:
        name, image = container["name"], container["image"]
        if _PINNED.fullmatch(image) is None:
            yield "image", f"{name}: pin {image} to a version or digest"
        resources = container.get("resources", {})
        for kind in ("cpu", "memory"):
            if kind not in resources.get("requests", {}):
                yield "resources", f"{name}: request {kind}"
        if "memory" not in resources.get("limits", {}):
            yield "resources", f"{name}: limit memory"
        if name != "quire" or pod.ends:
            continue  # has ways of its own to say how it is, or says so by its end
        ports = {port.get("name"): port["containerPort"] for port in container.get("ports", [])}
        for probe, path in PROBES.items():
            yield from _probe(container, probe, path, ports)


def _probe(
    container: Object, probe: str, path: str, ports: dict[Any, int]
) -> Iterator[tuple[str, str]]:
    asked = container.get(probe, {})
    get = asked.get("httpGet")
    if get is None:
        yield "probe", f"{container['name']}: add {probe} with httpGet {path} on port admin"
        return
    if get.get("port") not in (*ports, *ports.values()):
        yield "probe", f"{container['name']}: {probe} asks port {get.get('port')}, not declared"
    elif get["port"] not in ("admin", ports.get("admin")):
        yield "probe", f"{container['name']}: {probe} must ask port admin"
    if get.get("path") != path:
        yield "probe", f"{container['name']}: {probe} must ask {path}"
    if probe == "startupProbe":
        longest = asked.get("periodSeconds", 10) * asked.get("failureThreshold", 3)
        if longest < MIN_STARTUP_S:
            yield "probe", f"{container['name']}: give the start {MIN_STARTUP_S} s, not {longest}"


def _spreading(pod: PodTemplate) -> Iterator[tuple[str, str]]:
    for constraint in pod.spec.get("topologySpreadConstraints", []):
        if not matches(constraint.get("labelSelector", {"matchLabels": {"": ""}}), pod.labels):
            yield "topology", f"its spread over {constraint['topologyKey']} does not count itself"
    for kind, terms in pod.spec.get("affinity", {}).items():
        if kind != "podAntiAffinity":
            continue
        for term in _terms(terms):
            if not matches(term.get("labelSelector", {}), pod.labels):
                yield "topology", "its podAntiAffinity is to other pods than its own"


def _terms(affinity: Object) -> Iterator[Object]:
    yield from affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    for each in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", []):
        yield each["podAffinityTerm"]


def _update(owner: Object) -> Iterator[tuple[str, str]]:
    spec = owner["spec"]
    if owner["kind"] == "StatefulSet":
        if spec.get("updateStrategy", {}).get("type") != "OnDelete":
            yield "update", "set updateStrategy OnDelete: cells are replaced one after the other"
        if spec.get("podManagementPolicy") != "Parallel" and spec.get("replicas", 1) > 1:
            yield "update", "set podManagementPolicy: Parallel: no rank is ready without the others"
    if owner["kind"] == "Deployment":
        rolling = spec.get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxUnavailable") != 0:
            yield "update", "set maxUnavailable: 0: the next router is there before one goes"
    if owner["kind"] == "Job" and "activeDeadlineSeconds" not in spec:
        yield "update", "set activeDeadlineSeconds: a deployment waits for its end"


def _budgets(manifests: Manifests) -> Iterator[Finding]:
    budgets = manifests.of_kind("PodDisruptionBudget")
    for budget in budgets:
        spec = budget["spec"]
        if not manifests.selected(spec["selector"]):
            yield Finding(where(budget), "budget", "it selects no pods")
        if spec.get("maxUnavailable") in (None, 0, "0%"):
            yield Finding(
                where(budget), "budget", "set maxUnavailable: 1, or nodes cannot be emptied"
            )
    for pod in manifests.pods:
        if pod.ends:
            continue  # and begins again elsewhere
        count = sum(matches(budget["spec"]["selector"], pod.labels) for budget in budgets)
        if count != 1:
            yield Finding(
                pod.where, "budget", f"one PodDisruptionBudget must select it, not {count}"
            )
