"""NetworkPolicies permit the hops that Quire makes, each at both ends, and nothing else."""

from collections.abc import Iterator
from itertools import product
from urllib.parse import urlsplit

from tools.manifests.environment import environment
from tools.manifests.objects import PULL, Finding, Manifests, Object, PodTemplate, matches, where

DNS_PORT = 53
ADMIN_PORT = 9090
HTTP_PORT = 8000
TRACES_PORT = 4317
# Of the API server, by its Service and by itself.
API_PORTS = (443, 6443)
HUB_PORT = 443
TRACES_OPTION = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Of workers, from which ranks get the ports on which they meet.
EPHEMERAL = (54000, 60999)
SYSCTL = {"name": "net.ipv4.ip_local_port_range", "value": "{} {}".format(*EPHEMERAL)}
# Who calls whom, at which port; "cell" where both must be of one.
HOPS = {
    ("router", "scheduler", "grpc"): "any",
    ("worker", "scheduler", "grpc"): "cell",
    ("scheduler", "worker", "grpc"): "cell",
    # They fetch blocks of what moves from one cell to another.
    ("worker", "worker", "grpc"): "any",
    ("worker", "worker", "ephemeral"): "cell",
    # It reads how many requests each has under way.
    ("endpoint-picker", "router", "admin"): "any",
}


def check_network(manifests: Manifests) -> Iterator[Finding]:
    """All is denied but these hops, DNS, clients' calls of routers and reading of metrics."""
    policies = manifests.of_kind("NetworkPolicy")
    for policy in policies:
        if not manifests.selected(policy["spec"]["podSelector"]):
            yield Finding(where(policy), "network", "it selects no pods")
    if not any(_denies_all(policy["spec"]) for policy in policies):
        advice = "add one that selects every pod, of both types, and permits nothing"
        yield Finding("NetworkPolicy", "network", advice)
    for pod in manifests.pods:
        if (
            pod.command == "worker"
            and not pod.is_ray
            and SYSCTL not in pod.spec.get("securityContext", {}).get("sysctls", [])
        ):
            advice = f"set the sysctl {SYSCTL['name']} to {SYSCTL['value']}, where ranks may meet"
            yield Finding(pod.where, "network", advice)
        yield from _outside(manifests, policies, pod)
    for source, target in product(manifests.pods, repeat=2):
        yield from _hop(policies, source, target)


def _denies_all(spec: Object) -> bool:
    rules = (spec.get("ingress"), spec.get("egress"))
    return (
        not spec["podSelector"]
        and set(spec["policyTypes"]) == {"Ingress", "Egress"}
        and not any(rules)
    )


def _rules(policies: list[Object], pod: PodTemplate, direction: str) -> list[Object]:
    """Return the rules that hold for a pod in a direction."""
    return [
        rule
        for policy in policies
        if direction in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], pod.labels)
        for rule in policy["spec"].get(direction.lower()) or []
    ]


def _peers(rule: Object) -> list[Object] | None:
    """Return whom a rule names, None for everybody."""
    peers: list[Object] | None = rule.get("from") or rule.get("to")
    return peers


def _names(rule: Object, pod: PodTemplate) -> bool:
    """Whether a rule permits a pod of this namespace."""
    peers = _peers(rule)
    if peers is None:
        return True
    return any(
        "ipBlock" not in peer
        and "namespaceSelector" not in peer
        and matches(peer.get("podSelector", {}), pod.labels)
        for peer in peers
    )


def _ports(rule: Object, target: PodTemplate | None = None) -> list[tuple[int, int]]:
    """Return the ranges of ports that a rule permits."""
    if "ports" not in rule:
        return [(0, 65535)]
    ranges = []
    for port in rule["ports"]:
        first = port.get("port", 0)
        if isinstance(first, str):
            first = target.ports.get(first, -1) if target else -1
        ranges.append((first, port.get("endPort", first or 65535)))
    return ranges


def _permitted(
    policies: list[Object], source: PodTemplate, target: PodTemplate, port: int
) -> tuple[bool, bool]:
    """Return whether the sender may send and the receiver may receive."""

    def allowed(pod: PodTemplate, direction: str, other: PodTemplate) -> bool:
        rules = _rules(policies, pod, direction)
        return any(
            _names(rule, other) and any(low <= port <= high for low, high in _ports(rule, target))
            for rule in rules
        )

    return allowed(source, "Egress", target), allowed(target, "Ingress", source)


def _hop(policies: list[Object], source: PodTemplate, target: PodTemplate) -> Iterator[Finding]:
    if source.is_ray and target.is_ray:
        if not all(_permitted(policies, source, target, port=EPHEMERAL[0])):
            advice = f"permit {source.where}: nodes of Ray call each other at any port"
            yield Finding(target.where, "network", advice)
        return
    grpc_port = target.ports.get("grpc", 0)
    probes = {
        "grpc": (grpc_port,),
        "ephemeral": EPHEMERAL,
        "admin": (ADMIN_PORT,),
        "other": (1, 22, 443, HTTP_PORT, EPHEMERAL[0] - 1, EPHEMERAL[1] + 1, 65535),
    }
    for kind, ports in probes.items():
        needed = HOPS.get((source.command, target.command, kind))
        if needed == "cell" and source.cell != target.cell:
            needed = None
        for port in ports:
            if port == grpc_port and kind != "grpc":
                continue
            sends, receives = _permitted(policies, source, target, port)
            if needed and not sends:
                advice = f"permit egress to {target.where} at {port}"
                yield Finding(source.where, "network", advice)
            if needed and not receives:
                advice = f"permit ingress from {source.where} at {port}"
                yield Finding(target.where, "network", advice)
            # Each end by itself: the other is no reason to leave one open.
            if not needed and sends:
                advice = f"deny egress to {target.where} at {port}: it does not call that"
                yield Finding(source.where, "network", advice)
            if not needed and receives:
                advice = f"deny ingress from {source.where} at {port}: that does not call it"
                yield Finding(target.where, "network", advice)


def _outside(manifests: Manifests, policies: list[Object], pod: PodTemplate) -> Iterator[Finding]:
    """Check what a pod may have to do with others than Quire's."""
    called = {DNS_PORT}
    if pod.is_picker:
        called |= set(API_PORTS)
    if pod.command == PULL:
        called.add(HUB_PORT)
    if endpoint := environment(manifests, pod, pod.main).get(TRACES_OPTION):
        called.add(urlsplit(endpoint).port or TRACES_PORT)
    permitted = set()
    for rule in _rules(policies, pod, "Egress"):
        if _is_inside(rule):
            continue
        for low, high in _ports(rule):
            permitted.add(low)
            if _peers(rule) is None or low != high or low not in called:
                advice = f"permit no egress at port {low}, but to Quire, DNS and its collector"
                yield Finding(pod.where, "network", advice)
    for port in sorted(called - permitted):
        advice = f"permit egress to {_named(pod, port)}, port {port}"
        yield Finding(pod.where, "network", advice)
    open_to_all = {ADMIN_PORT}
    if pod.command == "router" or pod.is_picker:
        open_to_all |= {pod.ports.get("grpc", 0), pod.ports.get("http", 0)}
    for rule in _rules(policies, pod, "Ingress"):
        if _is_inside(rule):
            continue
        for low, high in _ports(rule, pod):
            if low != high or low not in open_to_all:
                advice = f"permit others no ingress at port {low}"
                yield Finding(pod.where, "network", advice)


def _named(pod: PodTemplate, port: int) -> str:
    """Return whom a pod calls at a port outside."""
    if pod.command == PULL and port == HUB_PORT:
        return "the hub"
    if port in API_PORTS:
        return "the API server"
    return "DNS" if port == DNS_PORT else "the collector of traces"


def _is_inside(rule: Object) -> bool:
    """Return whether a rule names pods of this namespace alone."""
    peers = _peers(rule)
    return peers is not None and not any(
        peer.keys() & {"ipBlock", "namespaceSelector"} for peer in peers
    )
