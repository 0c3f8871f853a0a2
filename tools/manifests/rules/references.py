"""What objects name: it is rendered with them, or known to be made by hand, or by a controller."""

from collections.abc import Iterator
from typing import Any

from tools.manifests.objects import Finding, Manifests, Object, PodTemplate, where

EXTERNAL: dict[tuple[str, str], str] = {
    ("PersistentVolumeClaim", "quire-model"): (
        "a claim of this name, ReadOnlyMany, on a volume with the model directory at its root; "
        "ReadWriteMany for the component pull, which puts it there"
    ),
    ("Secret", "quire-api-keys"): (
        "quire keys add NAME --file keys.jsonl && "
        "kubectl -n NAMESPACE create secret generic quire-api-keys --from-file=keys.jsonl"
    ),
    ("Secret", "quire-ray-token"): (
        "kubectl -n NAMESPACE create secret generic quire-ray-token "
        '--from-literal=auth_token="$(openssl rand -hex 32)"'
    ),
}
"""What must be there before, and how to make it."""


def check_references(manifests: Manifests) -> Iterator[Finding]:
    """Every name leads somewhere."""
    for pod in manifests.pods:
        for kind, name in references(pod):
            if not is_there(manifests, kind, name):
                advice = f"{kind} {name} is neither rendered nor known to be made otherwise"
                yield Finding(pod.where, "reference", advice)
        mounted = {
            mount["name"]
            for container in pod.containers
            for mount in container.get("volumeMounts", [])
        }
        declared = {volume["name"] for volume in pod.spec.get("volumes", [])}
        for name in sorted(mounted ^ declared):
            yield Finding(pod.where, "reference", f"volume {name} must be declared and mounted")
    issuers = {each["metadata"]["name"] for each in manifests.of_kind("Issuer", "ClusterIssuer")}
    for each in manifests.of_kind("Certificate"):
        if each["spec"]["issuerRef"]["name"] not in issuers:
            yield Finding(where(each), "reference", "its issuer is not here")
    for each in manifests.of_kind("Issuer"):
        secret = each["spec"].get("ca", {}).get("secretName")
        if secret and secret not in _certificate_secrets(manifests):
            yield Finding(where(each), "reference", f"no Certificate makes the Secret {secret}")


def references(pod: PodTemplate) -> Iterator[tuple[str, str]]:
    """Yield kind and name of what must be there before a pod can start."""
    spec = pod.spec
    yield "ServiceAccount", spec.get("serviceAccountName", "default")
    if "priorityClassName" in spec:
        yield "PriorityClass", spec["priorityClassName"]
    for volume in spec.get("volumes", []):
        yield from _volume(volume)
    for container in pod.containers:
        for source in container.get("envFrom", []):
            yield from _source(source, "Ref")
        for variable in container.get("env", []):
            yield from _source(variable.get("valueFrom", {}), "KeyRef")


def _volume(volume: Object) -> Iterator[tuple[str, str]]:
    if "configMap" in volume:
        yield "ConfigMap", volume["configMap"]["name"]
    if "persistentVolumeClaim" in volume:
        yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    if "secret" in volume and not volume["secret"].get("optional"):
        yield "Secret", volume["secret"]["secretName"]


def _source(source: dict[str, Any], suffix: str) -> Iterator[tuple[str, str]]:
    for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        named = source.get(key + suffix)
        if named and not named.get("optional"):
            yield kind, named["name"]


def is_there(manifests: Manifests, kind: str, name: str) -> bool:
    """Return whether a named object is rendered, declared in EXTERNAL, or made by cert-manager."""
    if manifests.find(kind, name) or (kind, name) in EXTERNAL:
        return True
    return kind == "Secret" and name in _certificate_secrets(manifests)


def _certificate_secrets(manifests: Manifests) -> set[str]:
    return {each["spec"]["secretName"] for each in manifests.of_kind("Certificate")}


def needed_before(manifests: Manifests) -> dict[tuple[str, str], str]:
    """Return the external objects that pods of these manifests need, and how to make each."""
    asked = {each for pod in manifests.pods for each in references(pod)}
    return {each: advice for each, advice in EXTERNAL.items() if each in asked}
