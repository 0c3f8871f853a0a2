"""What a container is started with: environment and arguments, as the kubelet makes them."""

import math
import re
from collections.abc import Mapping, Sequence

from tools.manifests.objects import Manifests, Object, PodTemplate

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")


def environment(
    manifests: Manifests, pod: PodTemplate, container: Object, ordinal: int = 0
) -> dict[str, str]:
    """Return the variables of a container of one pod.

    ConfigMaps come first and single variables override them. What is not known before there is a
    pod is filled in as for one with this ordinal; a Secret's content is left out.

    Args:
        manifests: that hold its ConfigMaps.
        pod: which kind of pod.
        container: of it.
        ordinal: which of the pods.
    """
    values = injected(pod, ordinal)
    for source in container.get("envFrom", []):
        reference = source.get("configMapRef")
        config = reference and manifests.find("ConfigMap", reference["name"])
        values.update((config or {}).get("data", {}))
    for variable in container.get("env", []):
        if "value" in variable:
            values[variable["name"]] = expand(variable["value"], values)
        elif source := variable.get("valueFrom"):
            found = _from_source(manifests, pod, container, ordinal, source)
            if found is not None:
                values[variable["name"]] = found
    return values


def arguments(container: Object, values: Mapping[str, str]) -> list[str]:
    """Return the arguments of a container, after its image's entry point."""
    return [expand(argument, values) for argument in container.get("args", [])]


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) by a variable's value, as Kubernetes does; an unknown one stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def unresolved(arguments: Sequence[str]) -> list[str]:
    """Return the names in arguments that no variable replaced."""
    return [match[2] for each in arguments for match in _REFERENCE.finditer(each) if match[2]]


def injected(pod: PodTemplate, ordinal: int) -> dict[str, str]:
    """Return the variables that the owner's controller sets."""
    if pod.owner["kind"] != "LeaderWorkerSet":
        return {}
    name = pod.owner["metadata"]["name"]
    namespace = pod.owner["metadata"].get("namespace", "default")
    return {"LWS_LEADER_ADDRESS": f"{name}-0.{name}.{namespace}"}


def labels_of_one(pod: PodTemplate, ordinal: int) -> dict[str, str]:
    """Return the labels of one pod, with those that distinguish it from its siblings."""
    labels = dict(pod.labels)
    if pod.owner["kind"] == "StatefulSet":
        labels["apps.kubernetes.io/pod-index"] = str(ordinal)
    if pod.owner["kind"] == "LeaderWorkerSet":
        index = 0 if pod.part == "leader" else ordinal + 1
        labels["leaderworkerset.sigs.k8s.io/worker-index"] = str(index)
    return labels


def _from_source(
    manifests: Manifests, pod: PodTemplate, container: Object, ordinal: int, source: Object
) -> str | None:
    if field := source.get("fieldRef"):
        path = field["fieldPath"]
        if label := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
            return labels_of_one(pod, ordinal).get(label[1])
        known = {
            "metadata.name": pod.pod_name(ordinal),
            "metadata.namespace": pod.owner["metadata"].get("namespace", "default"),
            "status.podIP": "10.0.0.1",
        }
        return known.get(path)
    if resource := source.get("resourceFieldRef"):
        kind, _, name = resource["resource"].partition(".")
        quantity = container.get("resources", {}).get(kind, {}).get(name)
        if quantity is None:
            return None
        return str(math.ceil(parse_quantity(quantity) / parse_quantity(resource["divisor"])))
    if key := source.get("configMapKeyRef"):
        config = manifests.find("ConfigMap", key["name"]) or {}
        value: str | None = config.get("data", {}).get(key["key"])
        return value
    return None


def parse_quantity(text: str | float) -> float:
    """Return a Kubernetes quantity, such as "500m" or "4Gi", as a number."""
    match = re.fullmatch(r"([0-9.]+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", str(text))
    if match is None:
        raise ValueError(f"no quantity: {text}")
    powers = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3}
    binary = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(match[1]) * {**powers, **binary}.get(match[2] or "", 1.0)
