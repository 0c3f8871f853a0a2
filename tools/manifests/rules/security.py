"""Pod Security's "restricted" profile, and what of it Kubernetes leaves open."""

from collections.abc import Iterator

from tools.manifests.objects import Finding, Manifests, Object, PodTemplate, where

USER = 10001
VOLUME_TYPES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
    | {"projected", "secret"}
)
SAFE_SYSCTLS = frozenset({"net.ipv4.ip_local_port_range"})
RBAC_KINDS = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
READS = frozenset({"get", "list", "watch"})
PICKER_RESOURCES = frozenset(
    {"pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"}
)
LEVELS = ("enforce", "audit", "warn")


def check_security(manifests: Manifests) -> Iterator[Finding]:
    """Namespaces enforce "restricted", pods keep to it, and no service may ask the API server."""
    for each in manifests.of_kind("Namespace"):
        labels = each["metadata"].get("labels", {})
        for level in LEVELS:
            label = f"pod-security.kubernetes.io/{level}"
            if labels.get(label) != "restricted":
                yield Finding(where(each), "pod-security", f"label it {label}: restricted")
    for each in manifests.of_kind(*RBAC_KINDS):
        if not _is_of_picker(manifests, each):
            advice = "remove it: no service asks the API server anything; a picker reads pods"
            yield Finding(where(each), "rbac", advice)
    for each in manifests.of_kind("ServiceAccount"):
        if each.get("automountServiceAccountToken") is not False:
            yield Finding(where(each), "token", "set automountServiceAccountToken: false")
    for pod in manifests.pods:
        for rule, advice in [*_pod(pod), *_volumes(pod)]:
            yield Finding(pod.where, rule, advice)
        for container in pod.containers:
            for rule, advice in _container(container):
                yield Finding(pod.where, rule, f"{container['name']}: {advice}")


def _is_of_picker(manifests: Manifests, each: Object) -> bool:
    """Return whether it lets a picker of endpoints read, and nothing else, in this namespace."""
    accounts = {True: set[str](), False: set[str]()}
    for pod in manifests.pods:
        accounts[pod.is_picker].add(pod.spec.get("serviceAccountName", "default"))
    if each["kind"] == "Role":
        return bool(accounts[True]) and all(
            set(rule["verbs"]) <= READS and set(rule["resources"]) <= PICKER_RESOURCES
            for rule in each["rules"]
        )
    return each["kind"] == "RoleBinding" and (
        manifests.find(each["roleRef"]["kind"], each["roleRef"]["name"]) is not None
        and {subject["kind"] for subject in each["subjects"]} == {"ServiceAccount"}
        and {subject["name"] for subject in each["subjects"]} <= accounts[True] - accounts[False]
    )


def _pod(pod: PodTemplate) -> Iterator[tuple[str, str]]:
    spec = pod.spec
    context = spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True:
        yield "non-root", "set securityContext.runAsNonRoot: true"
    for field in ("runAsUser", "runAsGroup"):
        if context.get(field) != USER:
            yield "non-root", f"set securityContext.{field}: {USER}, the images' user"
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccomp", "set securityContext.seccompProfile.type: RuntimeDefault"
    if spec.get("automountServiceAccountToken") is not pod.is_picker:
        yield "token", f"set automountServiceAccountToken: {str(pod.is_picker).lower()}"
    if spec.get("serviceAccountName", "default") == "default":
        yield "token", "set serviceAccountName to one of its own"
    for sysctl in context.get("sysctls", []):
        if sysctl["name"] not in SAFE_SYSCTLS:
            yield "sysctl", f"remove {sysctl['name']}: it is not a safe one"
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield "host", f"remove {field}"


def _volumes(pod: PodTemplate) -> Iterator[tuple[str, str]]:
    for volume in pod.spec.get("volumes", []):
        for kind in volume.keys() - {"name"} - VOLUME_TYPES:
            yield "host", f"volume {volume['name']}: a {kind} volume is not allowed"
        memory = volume.get("emptyDir", {})
        if memory.get("medium") == "Memory" and "sizeLimit" not in memory:
            yield "memory", f"volume {volume['name']}: set sizeLimit, since it is memory"


def _container(container: Object) -> Iterator[tuple[str, str]]:
    context = container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False:
        yield "privileges", "set securityContext.allowPrivilegeEscalation: false"
    if context.get("privileged"):
        yield "privileges", "remove securityContext.privileged"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "read-only", "set securityContext.readOnlyRootFilesystem: true"
    capabilities = context.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield "capabilities", "drop ALL capabilities and add none"
    if context.get("runAsUser", USER) == 0 or context.get("runAsNonRoot") is False:
        yield "non-root", "remove what its securityContext says of users: the pod's holds"
    if "seccompProfile" in context and context["seccompProfile"].get("type") == "Unconfined":
        yield "seccomp", "remove seccompProfile: the pod's holds"
    for port in container.get("ports", []):
        if "hostPort" in port:
            yield "host", f"remove hostPort of port {port['containerPort']}"
    writable = {
        mount["mountPath"]
        for mount in container.get("volumeMounts", [])
        if not mount.get("readOnly")
    }
    if "/tmp" not in writable:
        yield "read-only", "mount a writable /tmp: its root filesystem is read-only"
