"""Autoscalers, and the sizes of cells that they and the schedulers must agree about."""

from collections.abc import Iterator

from tools.manifests.environment import environment
from tools.manifests.objects import Finding, Manifests, PodTemplate, where

TP_OPTION = "QUIRE_SCHEDULER_TENSOR_PARALLEL_SIZE"


def check_scaling(manifests: Manifests) -> Iterator[Finding]:
    """Autoscalers have a target whose number is theirs alone; cells have all their ranks."""
    for each in manifests.of_kind("HorizontalPodAutoscaler", "ScaledObject"):
        reference = each["spec"]["scaleTargetRef"]
        target = manifests.find(reference["kind"], reference["name"])
        if target is None:
            advice = f"{reference['kind']} {reference['name']} is not here"
            yield Finding(where(each), "autoscaler", advice)
        elif "replicas" in target["spec"]:
            advice = "remove replicas: each deployment would set back what the autoscaler set"
            yield Finding(where(target), "autoscaler", advice)
    for pod in manifests.pods:
        if pod.command == "scheduler":
            yield from _cell(manifests, pod)


def _cell(manifests: Manifests, scheduler: PodTemplate) -> Iterator[Finding]:
    size = environment(manifests, scheduler, scheduler.main).get(TP_OPTION)
    owner = scheduler.owner
    if owner["kind"] == "LeaderWorkerSet":
        ranks = owner["spec"]["leaderWorkerTemplate"]["size"] - 1
    else:
        if scheduler.replicas != 1:
            advice = "one replica: a second takes the workers away from the first"
            yield Finding(scheduler.where, "cell", advice)
        ranks = sum(
            pod.replicas
            for pod in manifests.pods
            if pod.command == "worker" and pod.cell == scheduler.cell
        )
    if size != str(ranks):
        advice = f"{TP_OPTION} is {size}, but the cell has {ranks} workers"
        yield Finding(scheduler.where, "cell", advice)
