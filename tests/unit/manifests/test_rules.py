"""Mistakes planted in rendered objects: the rule that is there for each finds it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.manifests.rendering import DELETE, broken_rules, find, findings, fresh, plant
from tools.manifests import rules, schemas
from tools.manifests.render import ROOT
from tools.manifests.rules.network import TRACES_OPTION

ROUTER = "Deployment/quire-router"
SCHEDULER = "StatefulSet/quire-scheduler-a"
WORKER = "StatefulSet/quire-worker-a"
RAY = "RayCluster/quire-ray"
POOL = "InferencePool/quire"
PICKER = "Deployment/quire-endpoint-picker"
JOB = "Job/quire-pull"
HEAD = "spec headGroupSpec template spec containers 1"
OPTIONS = "ConfigMap/quire-options"
POD = "spec template spec"
MAIN = f"{POD} containers 0"
PROFILE = "pod-security.kubernetes.io/enforce"
ANY_PEER = {"ports": [{"port": 50052, "protocol": "TCP"}]}
OF_PULL = "NetworkPolicy/quire-pull"
OF_PICKER = "NetworkPolicy/quire-endpoint-picker"
FROM_PICKER = "NetworkPolicy/quire-router-from-endpoint-picker"
ROUTERS_AS_PICKER = {"name": "quire-router", "port": {"number": 50051}}
CLUSTER_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "quire"},
    "rules": [],
}


@dataclass(frozen=True)
class Mistake:
    """What is planted, where, and the rule that finds it.

    Attributes:
        rule: that finds it.
        where: object that it is planted in.
        path: in that object; "" for the whole object, which DELETE removes.
        value: that is planted.
        base: overlay and components.
        found_at: the object that is named, if it is another.
    """

    rule: str
    where: str
    path: str
    value: Any
    base: tuple[str, ...] = ("cpu",)
    found_at: str = ""


PROD, LWS = ("prod",), ("lws",)
MONITORED, ROUTED = ("cpu", "servicemonitor"), ("cpu", "grpcroute")
TRACED = ("cpu", "tracing")
SCALED = ("cpu", "autoscaling/routers")
POOLED = ("cpu", "inference-pool")
PULLED = ("cpu", "model", "pull")

MISTAKES = [
    # Security.
    Mistake("pod-security", "Namespace/quire", f"metadata labels {PROFILE}", "baseline"),
    Mistake("pod-security", "Namespace/quire", "metadata labels", DELETE),
    Mistake("token", "ServiceAccount/quire-router", "automountServiceAccountToken", True),
    Mistake("token", ROUTER, f"{POD} automountServiceAccountToken", DELETE),
    Mistake("token", ROUTER, f"{POD} serviceAccountName", DELETE),
    Mistake("non-root", WORKER, f"{POD} securityContext runAsNonRoot", DELETE),
    Mistake("non-root", WORKER, f"{POD} securityContext runAsUser", 0),
    Mistake("non-root", WORKER, f"{POD} securityContext runAsGroup", DELETE),
    Mistake("non-root", WORKER, f"{MAIN} securityContext runAsUser", 0),
    Mistake("seccomp", ROUTER, f"{POD} securityContext seccompProfile", DELETE),
    Mistake("seccomp", ROUTER, f"{MAIN} securityContext seccompProfile", {"type": "Unconfined"}),
    Mistake("sysctl", WORKER, f"{POD} securityContext sysctls 0 name", "kernel.msgmax"),
    Mistake("host", WORKER, f"{POD} hostNetwork", True),
    Mistake("host", WORKER, f"{POD} volumes 0", {"name": "tmp", "hostPath": {"path": "/tmp"}}),
    Mistake("host", WORKER, f"{MAIN} ports 0 hostPort", 50053),
    Mistake("memory", WORKER, f"{POD} volumes 0 emptyDir sizeLimit", DELETE),
    Mistake("privileges", ROUTER, f"{MAIN} securityContext allowPrivilegeEscalation", DELETE),
    Mistake("privileges", ROUTER, f"{MAIN} securityContext privileged", True),
    Mistake("read-only", ROUTER, f"{MAIN} securityContext readOnlyRootFilesystem", False),
    Mistake("read-only", ROUTER, f"{MAIN} volumeMounts 0 readOnly", True),
    Mistake("capabilities", ROUTER, f"{MAIN} securityContext capabilities", DELETE),
    Mistake("capabilities", ROUTER, f"{MAIN} securityContext capabilities add", ["NET_RAW"]),
    Mistake("token", PICKER, f"{POD} automountServiceAccountToken", False, POOLED),
    Mistake("rbac", "Role/quire-endpoint-picker", "rules 0 verbs 0", "delete", POOLED),
    Mistake("rbac", "Role/quire-endpoint-picker", "rules 0 resources 0", "secrets", POOLED),
    Mistake("rbac", "RoleBinding/quire-endpoint-picker", "roleRef name", "admin", POOLED),
    Mistake("rbac", "RoleBinding/quire-endpoint-picker", "subjects 0 name", "quire-router", POOLED),
    Mistake("rbac", "RoleBinding/quire-endpoint-picker", "subjects 0 kind", "Group", POOLED),
    # What makes pods.
    Mistake("labels", ROUTER, f"{POD[:-5]} metadata labels app.kubernetes.io/name", "quire"),
    Mistake("labels", ROUTER, f"{POD[:-5]} metadata labels app.kubernetes.io/part-of", DELETE),
    Mistake("selector", ROUTER, "spec selector matchLabels app.kubernetes.io/name", "router"),
    Mistake("selector", WORKER, "spec selector matchLabels quire-cell", DELETE),
    Mistake("image", ROUTER, f"{MAIN} image", "registry.example/quire-router:latest"),
    Mistake("image", ROUTER, f"{MAIN} image", "registry.example:5000/quire-router"),
    Mistake("resources", WORKER, f"{MAIN} resources limits memory", DELETE),
    Mistake("resources", WORKER, f"{MAIN} resources requests cpu", DELETE),
    Mistake("probe", WORKER, f"{MAIN} livenessProbe", DELETE),
    Mistake("probe", WORKER, f"{MAIN} readinessProbe httpGet port", "metrics"),
    Mistake("probe", WORKER, f"{MAIN} readinessProbe httpGet port", "grpc"),
    Mistake("probe", WORKER, f"{MAIN} livenessProbe httpGet path", "/readyz"),
    Mistake("probe", WORKER, f"{MAIN} startupProbe failureThreshold", 3),
    Mistake("update", WORKER, "spec updateStrategy type", "RollingUpdate"),
    Mistake("update", WORKER, "spec podManagementPolicy", "OrderedReady"),
    Mistake("update", ROUTER, "spec strategy rollingUpdate maxUnavailable", 1),
    Mistake("update", JOB, "spec activeDeadlineSeconds", DELETE, PULLED),
    Mistake("labels", JOB, f"{POD[:-5]} metadata labels app.kubernetes.io/name", "quire", PULLED),
    Mistake("budget", "PodDisruptionBudget/quire-router", "spec maxUnavailable", 0),
    Mistake("budget", "PodDisruptionBudget/quire-router", "", DELETE, found_at=ROUTER),
    Mistake(
        "budget",
        "PodDisruptionBudget/quire-worker-a",
        "spec selector matchLabels quire-cell",
        "b",
    ),
    Mistake(
        "topology",
        ROUTER,
        f"{POD} topologySpreadConstraints 0 labelSelector matchLabels",
        {"app": "quire"},
        PROD,
    ),
    Mistake(
        "topology",
        SCHEDULER,
        f"{POD} affinity podAntiAffinity requiredDuringSchedulingIgnoredDuringExecution 0"
        " labelSelector matchLabels",
        {"app": "quire"},
        PROD,
    ),
    # Services and routes.
    Mistake("service-port", "Service/quire-router", "spec ports 0 targetPort", "https"),
    Mistake("service-port", "Service/quire-router", "spec ports 0 port", 443),
    Mistake("service-selector", "Service/quire-cells", "spec selector", {"app": "quire"}),
    Mistake(
        "service-selector",
        "Service/quire-cells",
        "spec selector",
        {"app.kubernetes.io/part-of": "quire"},
    ),
    Mistake("service-type", "Service/quire-router", "spec type", "LoadBalancer"),
    Mistake("service-name", WORKER, "spec serviceName", "quire-workers"),
    Mistake("service-name", "Service/quire-worker-a", "spec clusterIP", DELETE, found_at=WORKER),
    Mistake("service-name", "Service/quire-worker-a", "spec publishNotReadyAddresses", DELETE),
    Mistake("route", "GRPCRoute/quire-router", "spec rules 0 backendRefs 0 port", 80, ROUTED),
    Mistake("monitor", "ServiceMonitor/quire", "spec endpoints 0 port", "metrics", MONITORED),
    Mistake("monitor", "ServiceMonitor/quire", "spec endpoints 0 port", "grpc", MONITORED),
    Mistake("route", "HTTPRoute/quire", "spec rules 0 backendRefs 0 name", "router", POOLED),
    Mistake("route", "HTTPRoute/quire", "spec rules 0 backendRefs 0 group", DELETE, POOLED),
    Mistake(
        "route", "HTTPRoute/quire", "spec hostnames 0", "quire.example.com", (*POOLED, "grpcroute")
    ),
    # Pools.
    Mistake(
        "pool-selector",
        POOL,
        "spec selector matchLabels",
        {"app.kubernetes.io/part-of": "quire"},
        POOLED,
    ),
    Mistake("pool-selector", POOL, "spec selector matchLabels", {"app": "quire"}, POOLED),
    Mistake("pool-port", POOL, "spec targetPorts 0 number", 50051, POOLED),
    Mistake("pool-tls", OPTIONS, "data QUIRE_TLS_DIR", "/etc/quire/tls", POOLED, found_at=POOL),
    Mistake("pool-picker", POOL, "spec endpointPickerRef name", "picker", POOLED),
    Mistake("pool-picker", POOL, "spec endpointPickerRef port number", 9003, POOLED),
    Mistake("pool-picker", POOL, "spec endpointPickerRef", ROUTERS_AS_PICKER, POOLED),
    Mistake("picker-arguments", PICKER, f"{MAIN} args 0", "--pool-name=pool", POOLED, POOL),
    Mistake("picker-arguments", PICKER, f"{MAIN} args 2", "--grpc-port=9004", POOLED, POOL),
    Mistake("picker-arguments", PICKER, f"{MAIN} args 6", DELETE, POOLED, POOL),
    # Network.
    Mistake(
        "network",
        "NetworkPolicy/quire-default-deny",
        "spec policyTypes",
        ["Ingress"],
        found_at="NetworkPolicy",
    ),
    Mistake("network", "NetworkPolicy/quire-dns", "", DELETE, found_at=ROUTER),
    Mistake("network", "NetworkPolicy/quire-router", "spec egress", DELETE, found_at=ROUTER),
    Mistake("network", FROM_PICKER, "", DELETE, POOLED, ROUTER),
    Mistake("network", FROM_PICKER, "spec ingress 0 ports 0 port", 22, POOLED, ROUTER),
    Mistake("network", OF_PICKER, "spec egress 0", DELETE, POOLED, PICKER),
    Mistake("network", OF_PICKER, "spec egress 1", DELETE, POOLED, PICKER),
    Mistake("network", OF_PICKER, "spec egress 1 to", DELETE, POOLED, PICKER),
    Mistake("network", OF_PICKER, "spec ingress 0 ports 0 port", 9003, POOLED, PICKER),
    Mistake("network", OF_PULL, "", DELETE, PULLED, JOB),
    Mistake("network", OF_PULL, "spec egress 0 ports 0 port", 80, PULLED, JOB),
    Mistake("network", OF_PULL, "spec egress 0 to", DELETE, PULLED, JOB),
    Mistake("network", "NetworkPolicy/quire-dns", "", DELETE, PULLED, JOB),
    Mistake(
        "network", "NetworkPolicy/quire-scheduler-from-routers", "", DELETE, found_at=SCHEDULER
    ),
    Mistake("network", "NetworkPolicy/quire-worker-to-workers", "", DELETE, found_at=WORKER),
    Mistake(
        "network", "NetworkPolicy/quire-worker-to-workers", "spec ingress", [], found_at=WORKER
    ),
    Mistake("network", "NetworkPolicy/quire-worker-to-workers", "spec egress", [], found_at=WORKER),
    Mistake("network", "NetworkPolicy/quire-scheduler-a", "spec ingress", [], found_at=SCHEDULER),
    Mistake("network", "NetworkPolicy/quire-scheduler-a", "spec egress", [], found_at=SCHEDULER),
    Mistake("network", "NetworkPolicy/quire-worker-a", "spec ingress 0", DELETE, found_at=WORKER),
    Mistake("network", "NetworkPolicy/quire-worker-a", "spec ingress 1", DELETE, found_at=WORKER),
    Mistake("network", "NetworkPolicy/quire-worker-a", "spec egress 0", DELETE, found_at=WORKER),
    Mistake("network", "NetworkPolicy/quire-worker-a", "spec egress 1", DELETE, found_at=WORKER),
    Mistake(
        "network",
        "NetworkPolicy/quire-worker-a",
        "spec ingress 1 ports 0 port",
        50053,
        found_at=WORKER,
    ),
    Mistake(
        "network", "NetworkPolicy/quire-worker-a", "spec ingress 1 ports", DELETE, found_at=WORKER
    ),
    Mistake("network", WORKER, f"{POD} securityContext sysctls", DELETE),
    Mistake("network", "NetworkPolicy/quire-tracing", "", DELETE, TRACED, found_at=ROUTER),
    Mistake("network", OPTIONS, f"data {TRACES_OPTION}", "http://a:4318", TRACED, found_at=ROUTER),
    Mistake("network", OPTIONS, f"data {TRACES_OPTION}", DELETE, TRACED, found_at=ROUTER),
    Mistake("network", "NetworkPolicy/quire-router", "spec egress 1", ANY_PEER, found_at=ROUTER),
    Mistake(
        "network", "NetworkPolicy/quire-scheduler-a", "spec ingress 1", ANY_PEER, found_at=SCHEDULER
    ),
    Mistake("network", "NetworkPolicy/quire-router", "spec podSelector matchLabels", {"a": "b"}),
    # What is named.
    Mistake("reference", OPTIONS, "metadata name", "quire-options", found_at=ROUTER),
    Mistake("reference", ROUTER, f"{POD} serviceAccountName", "router"),
    Mistake("reference", ROUTER, f"{POD} priorityClassName", "quire-first", PROD),
    Mistake("reference", ROUTER, f"{POD} volumes 1 secret secretName", "tls", PROD),
    Mistake("reference", ROUTER, f"{MAIN} volumeMounts 1", DELETE),
    Mistake("reference", "Issuer/quire-authority", "spec ca secretName", "none", PROD),
    Mistake("reference", "Certificate/quire-router", "spec issuerRef name", "none", PROD),
    Mistake("reference", "ConfigMap/quire-pull", "metadata name", "quire-pull", PULLED, JOB),
    # Options.
    Mistake("arguments", JOB, f"{MAIN} args 0", "--model=$(MODEL)", PULLED),
    Mistake("arguments", JOB, f"{MAIN} args 0", "$(MODEL_NAME)", PULLED),
    Mistake("model", JOB, f"{MAIN} args 1", "/models", PULLED),
    Mistake("model", JOB, f"{MAIN} volumeMounts 1 readOnly", True, PULLED),
    Mistake("service-links", ROUTER, f"{POD} enableServiceLinks", DELETE),
    Mistake("arguments", ROUTER, f"{MAIN} args 1", "--schedulers-dns=quire-cells:50052"),
    Mistake("arguments", ROUTER, f"{MAIN} args 3", "--port=grpc"),
    Mistake("arguments", WORKER, f"{MAIN} args 0", "--announce-to=$(SCHEDULER):50052"),
    Mistake("arguments", OPTIONS, "data QUIRE_ROUTER_DRAIN_DELAY_S", "soon", found_at=ROUTER),
    Mistake("variables", OPTIONS, "data QUIRE_SCHEDULER_MAX_SEQS", "64", found_at=ROUTER),
    Mistake("ports", ROUTER, f"{MAIN} args 3", "--port=50050"),
    Mistake("ports", ROUTER, f"{MAIN} args 4", "--http-port=8001"),
    Mistake("ports", ROUTER, f"{MAIN} args 6", "--admin-port=9091"),
    Mistake("ports", ROUTER, f"{MAIN} args 2", "--host=127.0.0.1"),
    Mistake("ports", WORKER, f"{MAIN} ports 1 containerPort", 9091),
    Mistake("grace", SCHEDULER, f"{POD} terminationGracePeriodSeconds", 60),
    Mistake("grace", OPTIONS, "data QUIRE_ROUTER_DRAIN_TIMEOUT_S", "150", found_at=ROUTER),
    Mistake("address", ROUTER, f"{MAIN} args 1", "--scheduler-dns=cells:50052"),
    Mistake("address", ROUTER, f"{MAIN} args 1", "--scheduler-dns=quire-cells:50053"),
    Mistake("address", ROUTER, f"{MAIN} args 1", "--scheduler-dns=quire-routers:50051"),
    Mistake("address", WORKER, f"{MAIN} args 0", "--announce-to=quire-scheduler-b:50052", PROD),
    Mistake("address", WORKER, f"{MAIN} args 1", "--advertise-host=$(POD_NAME).workers"),
    Mistake("tls", OPTIONS, "data QUIRE_INSECURE", "0", found_at=ROUTER),
    Mistake("ranks", WORKER, f"{MAIN} args 6", "--log-level=info", ("cpu", "mtls")),
    Mistake("tls", OPTIONS, "data QUIRE_INSECURE", "1", PROD, found_at=ROUTER),
    Mistake("tls", OPTIONS, "data QUIRE_TLS_DIR", "/tls", PROD, found_at=ROUTER),
    Mistake("keys", OPTIONS, "data QUIRE_API_KEYS", "/etc/keys.jsonl", PROD, found_at=ROUTER),
    Mistake("model", OPTIONS, "data QUIRE_MODEL", "/models", PROD, found_at=WORKER),
    Mistake(
        "rank",
        WORKER,
        f"{MAIN} env 2",
        {"name": "QUIRE_WORKER_RANK", "value": "0"},
    ),
    Mistake("arguments", RAY, f"{HEAD} args 2", "--ray-adress=auto", ("ray",)),
    Mistake("variables", OPTIONS, "data QUIRE_SERVE_SIZE", "2", ("ray",), found_at=RAY),
    Mistake("network", "NetworkPolicy/quire-ray", "spec egress", [], ("ray",), found_at=RAY),
    # Sizes.
    Mistake("cell", OPTIONS, "data QUIRE_SCHEDULER_TENSOR_PARALLEL_SIZE", "4", found_at=SCHEDULER),
    Mistake("cell", WORKER, "spec replicas", 4, found_at=SCHEDULER),
    Mistake("cell", SCHEDULER, "spec replicas", 2),
    Mistake("cell", "LeaderWorkerSet/quire-cell", "spec leaderWorkerTemplate size", 2, LWS),
    Mistake("autoscaler", ROUTER, "spec replicas", 2, SCALED),
    Mistake(
        "autoscaler",
        "HorizontalPodAutoscaler/quire-router",
        "spec scaleTargetRef name",
        "router",
        SCALED,
    ),
    # Fields.
    Mistake("schema", ROUTER, "spec replica", 2),
    Mistake("schema", ROUTER, f"{POD} terminationGracePeriodSeconds", "long"),
    Mistake("schema", ROUTER, "apiVersion", "apps/v2"),
    Mistake("schema", "Certificate/quire-router", "spec issuer", "none", PROD),
    Mistake("schema", "Issuer/quire-authority", "spec ca", DELETE, PROD),
    Mistake(
        "schema",
        "LeaderWorkerSet/quire-cell",
        "spec leaderWorkerTemplate workerTemplate spec container",
        [],
        LWS,
    ),
    Mistake("schema", "GRPCRoute/quire-router", "spec rules 0 backendRefs", [], ROUTED),
    Mistake("schema", "ServiceMonitor/quire", "spec endpoints 0 interval", "often", MONITORED),
    Mistake("schema", POOL, "spec endpointPickerRef port", DELETE, POOLED),
    Mistake("schema", POOL, "spec targetPorts 1", {"number": 8000}, POOLED),
    Mistake("schema", "HTTPRoute/quire", "spec rules 0 timeouts request", "long", POOLED),
]


def title(mistake: Mistake) -> str:
    return f"{mistake.rule}: {mistake.where} {mistake.path[-40:]}"


@pytest.mark.parametrize("mistake", MISTAKES, ids=title)
def test_a_planted_mistake_is_found(mistake: Mistake) -> None:
    objects = fresh(*mistake.base)
    each = find(objects, mistake.where)
    if mistake.path:
        plant(each, mistake.path, mistake.value)
    else:
        objects.remove(each)
    # Schemas take a second for each set of objects.
    found = findings(objects) if mistake.rule == "schema" else broken_rules(objects)
    at = mistake.found_at or mistake.where
    assert any(one.rule == mistake.rule and one.where.startswith(at) for one in found), found


def test_a_role_is_found() -> None:
    assert [one.rule for one in broken_rules([*fresh("cpu"), CLUSTER_ROLE])] == ["rbac"]


@pytest.mark.parametrize(
    ("policy", "path", "found"),
    [
        (
            "NetworkPolicy/quire-scheduler-a",
            "spec ingress 0 from",
            "StatefulSet/quire-scheduler-a: network: deny ingress from StatefulSet/quire-worker-b",
        ),
        (
            "NetworkPolicy/quire-worker-b",
            "spec egress 0 to",
            "StatefulSet/quire-worker-b: network: deny egress to StatefulSet/quire-scheduler-a",
        ),
    ],
)
def test_a_cell_that_is_open_to_another_is_found(policy: str, path: str, found: str) -> None:
    objects = fresh("prod")
    reason = "it does not call that" if "egress" in found else "that does not call it"
    plant(find(objects, policy), f"{path} 0 podSelector matchLabels quire-cell", DELETE)
    assert [str(one) for one in broken_rules(objects)] == [f"{found} at 50052: {reason}"]


def test_autoscalers_ask_for_metrics_that_there_are() -> None:
    (cells,) = (
        each for each in fresh("lws", "autoscaling/cells") if each["kind"] == "ScaledObject"
    )
    queries = [trigger["metadata"]["query"] for trigger in cells["spec"]["triggers"]]
    named = {name for query in queries for name in re.findall(r"quire_\w+", query)}
    page = (ROOT / "docs" / "observability.md").read_text()
    assert named
    assert all(f"`{name}`" in page for name in named), named


def test_pickers_ask_for_a_metric_that_there_is() -> None:
    args = find(fresh(*POOLED), PICKER)["spec"]["template"]["spec"]["containers"][0]["args"]
    (name,) = (each.partition("=")[2] for each in args if "queued-requests" in each)
    assert f"| `{name}` | gauge |" in (ROOT / "docs" / "observability.md").read_text()


def test_every_rule_has_a_planted_mistake() -> None:
    files = [*Path(rules.__file__).parent.glob("*.py"), Path(schemas.__file__)]
    named = re.compile(r'(?:yield \(?\s*|Finding\([\w.]+(?:\(\w+\))?,\s*)"([a-z-]+)"')
    known = {rule for file in files for rule in named.findall(file.read_text())}
    assert len(known) > 30
    assert known <= {mistake.rule for mistake in MISTAKES}
