"""Rendered Kubernetes objects, and the pods that they will make."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Object = dict[str, Any]

NAME_LABEL = "app.kubernetes.io/name"
PART_OF_LABEL = "app.kubernetes.io/part-of"
CELL_LABEL = "quire-cell"
PICKER = "endpoint-picker"
PULL = "pull"


class ManifestError(Exception):
    """Manifests cannot be rendered, checked or applied; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with an object.

    Attributes:
        where: "Kind/name".
        rule: which rule it breaks.
        advice: what to do.
    """

    where: str
    rule: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.advice}"


@dataclass(frozen=True)
class PodTemplate:
    """Pods that one object makes, all from one template.

    Attributes:
        owner: the object.
        labels: of the pods, with those that the owner's controller adds.
        spec: PodSpec.
        replicas: pods that are made at first.
        part: which of the owner's templates, "" where there is one.
    """

    owner: Object
    labels: Mapping[str, str]
    spec: Object
    replicas: int
    part: str = ""

    @property
    def where(self) -> str:
        """For findings."""
        return where(self.owner) + (f" ({self.part})" if self.part else "")

    @property
    def command(self) -> str:
        """The `quire` command that they run: "router", "scheduler", "worker" or "pull"."""
        return self.labels.get(NAME_LABEL, "").removeprefix("quire-")

    @property
    def cell(self) -> str:
        """The cell that they belong to, "" for none."""
        return self.labels.get(CELL_LABEL, "")

    @property
    def containers(self) -> list[Object]:
        """Every container, those that run before the others included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def main(self) -> Object:
        """The container that runs Quire, the first where that is none of them by name."""
        containers: list[Object] = self.spec["containers"]
        return next((each for each in containers if each["name"] == "quire"), containers[0])

    @property
    def runs_quire(self) -> bool:
        """Whether a container of it is started as a command of Quire."""
        return bool(self.main["name"] == "quire")

    @property
    def is_picker(self) -> bool:
        """Whether it picks the router of a request for a Gateway: a program of another project."""
        return self.command == PICKER

    @property
    def ends(self) -> bool:
        """Whether its pods end by themselves when their work is done."""
        return bool(self.owner["kind"] == "Job")

    @property
    def is_ray(self) -> bool:
        """Whether it is a node of a Ray cluster."""
        return "ray.io/cluster" in self.labels

    @cached_property
    def ports(self) -> dict[str, int]:
        """Number of each declared port, by name."""
        return {
            port.get("name", ""): port["containerPort"]
            for container in self.containers
            for port in container.get("ports", [])
        }

    def pod_name(self, ordinal: int) -> str:
        """Name of one of the pods, as its controller gives them."""
        name = self.owner["metadata"]["name"]
        if self.owner["kind"] == "LeaderWorkerSet" and self.part != "leader":
            return f"{name}-0-{ordinal + 1}"  # of the first group
        return f"{name}-{ordinal}"


class Manifests:
    """Everything that is deployed together.

    Args:
        objects: as rendered.
    """

    def __init__(self, objects: Iterable[Object]) -> None:
        self.objects = list(objects)
        self.pods = [pod for each in self.objects for pod in pod_templates(each)]

    def of_kind(self, *kinds: str) -> list[Object]:
        """Return the objects of these kinds."""
        return [each for each in self.objects if each["kind"] in kinds]

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object, None if it is not there."""
        for each in self.of_kind(kind):
            if each["metadata"]["name"] == name:
                return each
        return None

    def selected(self, selector: Mapping[str, Any]) -> list[PodTemplate]:
        """Return the pods that a LabelSelector selects."""
        return [pod for pod in self.pods if matches(selector, pod.labels)]


def where(each: Object) -> str:
    """Return "Kind/name" of an object."""
    return f"{each['kind']}/{each['metadata']['name']}"


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects something with these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for term in selector.get("matchExpressions", []):
        value, values = labels.get(term["key"]), term.get("values", [])
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[term["operator"]]
        if not holds:
            return False
    return True


def pod_templates(each: Object) -> list[PodTemplate]:
    """Return the pods that an object makes, none for most kinds."""
    match each["kind"]:
        case "Deployment" | "StatefulSet" | "DaemonSet" | "Job":
            spec = each["spec"]
            return [_template(each, spec["template"], spec.get("replicas", 1))]
        case "LeaderWorkerSet":
            added = {"leaderworkerset.sigs.k8s.io/name": each["metadata"]["name"]}
            groups = each["spec"].get("replicas", 1)
            cell = each["spec"]["leaderWorkerTemplate"]
            leader, worker = cell["leaderTemplate"], cell["workerTemplate"]
            return [
                _template(each, leader, groups, "leader", added),
                _template(each, worker, groups * (cell["size"] - 1), "workers", added),
            ]
        case "RayCluster":
            added = {"ray.io/cluster": each["metadata"]["name"]}
            head, groups = each["spec"]["headGroupSpec"], each["spec"].get("workerGroupSpecs", [])
            return [
                _template(each, head["template"], 1, "head", added),
                *(
                    _template(each, group["template"], group["replicas"], group["groupName"], added)
                    for group in groups
                ),
            ]
    return []


def _template(
    owner: Object,
    template: Object,
    replicas: int,
    part: str = "",
    added: Mapping[str, str] | None = None,
) -> PodTemplate:
    labels = template.get("metadata", {}).get("labels", {})
    return PodTemplate(owner, {**labels, **(added or {})}, template["spec"], replicas, part)
