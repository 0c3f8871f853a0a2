"""InferencePools: their members are routers, and the picker of endpoints knows them."""

from collections.abc import Iterator

from tools.manifests.environment import arguments, environment
from tools.manifests.objects import Finding, Manifests, Object, PodTemplate, where


def check_pools(manifests: Manifests) -> Iterator[Finding]:
    """A Gateway finds the HTTP port of routers, and who picks one of them for each request."""
    for pool in manifests.of_kind("InferencePool"):
        for rule, advice in [*_members(manifests, pool), *_picker(manifests, pool)]:
            yield Finding(where(pool), rule, advice)


def _members(manifests: Manifests, pool: Object) -> Iterator[tuple[str, str]]:
    spec = pool["spec"]
    members = manifests.selected(spec["selector"])
    if {pod.command for pod in members} != {"router"}:
        yield "pool-selector", "select routers, and nothing else: they know what each cell holds"
    for pod in members:
        for port in spec["targetPorts"]:
            if port["number"] != pod.ports.get("http"):
                yield "pool-port", f"targetPort {port['number']} is not port http of {pod.where}"
        if environment(manifests, pod, pod.main).get("QUIRE_TLS_DIR"):
            yield "pool-tls", f"{pod.where} speaks TLS, and a Gateway calls a pool in the clear"


def _picker(manifests: Manifests, pool: Object) -> Iterator[tuple[str, str]]:
    reference = pool["spec"]["endpointPickerRef"]
    service = manifests.find(reference.get("kind", "Service"), reference["name"])
    if service is None:
        yield "pool-picker", f"there is no Service {reference['name']}"
        return
    if reference["port"]["number"] not in [port["port"] for port in service["spec"]["ports"]]:
        yield (
            "pool-picker",
            f"Service {reference['name']} has no port {reference['port']['number']}",
        )
    pickers = manifests.selected({"matchLabels": service["spec"]["selector"]})
    if not all(pod.is_picker for pod in pickers):
        yield "pool-picker", f"Service {reference['name']} selects others than pickers"
    members = manifests.selected(pool["spec"]["selector"])
    for pod in pickers:
        for option, wanted in _wanted(pod, pool, members).items():
            if wanted != _given(manifests, pod, option):
                yield "picker-arguments", f"{pod.where}: set {option}={wanted}"


def _wanted(pod: PodTemplate, pool: Object, members: list[PodTemplate]) -> dict[str, str]:
    """Return options of a picker, and what each has to be."""
    wanted = {
        "--pool-name": pool["metadata"]["name"],
        "--pool-namespace": pool["metadata"].get("namespace", "default"),
        "--grpc-port": str(pod.ports.get("grpc")),
    }
    admin = {str(member.ports.get("admin")) for member in members}
    return {**wanted, "--model-server-metrics-port": admin.pop()} if len(admin) == 1 else wanted


def _given(manifests: Manifests, pod: PodTemplate, option: str) -> str | None:
    for argument in arguments(pod.main, environment(manifests, pod, pod.main)):
        name, _, value = argument.partition("=")
        if name == option:
            return value
    return None
