"""Put manifests onto a cluster, by kubectl, and see each part of them come up."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.manifests.objects import CELL_LABEL, ManifestError, Manifests, Object
from tools.manifests.rules.references import needed_before

FIELD_MANAGER = "quire-deploy"
MIN_SERVER = (1, 31)
POLL_S = 2.0
REVISION_LABEL = "controller-revision-hash"
# Of each extension that the components use: the plural that its definition has, and who brings it.
EXTENSIONS = {
    "Certificate": ("certificates.cert-manager.io", "cert-manager"),
    "Issuer": ("issuers.cert-manager.io", "cert-manager"),
    "ServiceMonitor": ("servicemonitors.monitoring.coreos.com", "the Prometheus operator"),
    "ScaledObject": ("scaledobjects.keda.sh", "KEDA"),
    "LeaderWorkerSet": ("leaderworkersets.leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    "RayCluster": ("rayclusters.ray.io", "the KubeRay operator"),
    "GRPCRoute": ("grpcroutes.gateway.networking.k8s.io", "the Gateway API"),
    "HTTPRoute": ("httproutes.gateway.networking.k8s.io", "the Gateway API"),
    "InferencePool": (
        "inferencepools.inference.networking.k8s.io",
        "the Gateway API Inference Extension 1.0 or later",
    ),
}

# Conditions of extensions' objects that say that their pods are ready.
READY_CONDITIONS = {"LeaderWorkerSet": "Available", "RayCluster": "RayClusterProvisioned"}


class Cluster:
    """The cluster that kubectl is set to.

    Args:
        namespace: of everything that is deployed.
        say: called with what is being done.
        timeout_s: for each part to come up: for a router, or a cell.

    Raises:
        ManifestError: there is no kubectl, or no cluster behind it.
    """

    def __init__(self, namespace: str, say: Callable[[str], None], timeout_s: float = 900) -> None:
        self._namespace = namespace
        self._say = say
        self._timeout_s = timeout_s
        if shutil.which("kubectl") is None:
            raise ManifestError("kubectl is not installed, and APPLY=1 needs it")
        self._check_server()

    def _check_server(self) -> None:
        done = self._try("version", "--output=json", "--request-timeout=10s")
        version = json.loads(done.stdout or "{}").get("serverVersion") if done.stdout else None
        if done.returncode or version is None:
            raise ManifestError(
                f"no cluster answers kubectl: {_last_line(done.stderr)}; "
                "`kubectl config current-context` says which one it asks"
            )
        found = int(version["major"]), int(version["minor"].rstrip("+"))
        if found < MIN_SERVER:
            raise ManifestError(
                "the cluster has Kubernetes {}.{}; {}.{} or later is needed".format(
                    *found, *MIN_SERVER
                )
            )

    def apply(self, manifests: Manifests, file: Path) -> None:
        """Apply manifests, and replace what runs: routers by themselves, cells one by one.

        Jobs run again. Their ends are waited for first: pods come up with what they bring.

        Args:
            manifests: what to apply.
            file: that holds them.

        Raises:
            ManifestError: something they need is not there, or a part does not come up in time.
        """
        self._check_extensions(manifests)
        for each in manifests.of_kind("Namespace"):
            self._apply("-", json.dumps(each))
        self._check_external(manifests)
        jobs = [each["metadata"]["name"] for each in manifests.of_kind("Job")]
        for name in jobs:
            # One that is there cannot be changed. What it did stays done.
            self._run(
                *("delete", "job", name, "--namespace", self._namespace),
                *("--ignore-not-found", "--wait"),
            )
        self._apply(str(file))
        for name in jobs:
            self._await_job(name)
        for each in manifests.of_kind("Deployment"):
            name = each["metadata"]["name"]
            self._say(f"waiting for deployment {name}")
            self._run(
                *("rollout", "status", f"deployment/{name}", "--namespace", self._namespace),
                *("--timeout", f"{self._timeout_s:g}s"),
            )
        for each in manifests.of_kind(*READY_CONDITIONS):
            kind, name = each["kind"], each["metadata"]["name"]
            self._say(f"waiting for {kind} {name}")
            self._run(
                *("wait", f"{kind.lower()}/{name}", "--namespace", self._namespace),
                *("--for", f"condition={READY_CONDITIONS[kind]}"),
                *("--timeout", f"{self._timeout_s:g}s"),
            )
        for cell in sorted({pod.cell for pod in manifests.pods} - {""}):
            self._replace_cell(cell)

    def _check_extensions(self, manifests: Manifests) -> None:
        for kind, (definition, bringer) in EXTENSIONS.items():
            if not manifests.of_kind(kind):
                continue
            if self._try("get", "customresourcedefinition", definition).returncode:
                raise ManifestError(f"the cluster knows no {kind}: install {bringer} first")

    def _check_external(self, manifests: Manifests) -> None:
        missing = []
        for (kind, name), advice in needed_before(manifests).items():
            if self._try("get", kind, name, "--namespace", self._namespace).returncode:
                hint = advice.replace("NAMESPACE", self._namespace)
                missing.append(f"{kind} {name}: {hint}")
        if missing:
            raise ManifestError("to be made first:\n  " + "\n  ".join(missing))

    def _apply(self, file: str, text: str | None = None) -> None:
        # The server merges, and refuses to overwrite what another manager has set.
        self._run(
            *("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "--filename", file),
            text=text,
        )

    def _await_job(self, name: str) -> None:
        """Return when a Job has done its work. Its own deadline bounds the time."""
        logs = f"kubectl -n {self._namespace} logs job/{name}"
        self._say(f"waiting for job {name}: {logs} --follow")
        while True:
            said = self._run("get", "job", name, "--namespace", self._namespace, "--output=json")
            conditions = json.loads(said).get("status", {}).get("conditions", [])
            ended = {each["type"]: each for each in conditions if each["status"] == "True"}
            if "Complete" in ended:
                return
            if failed := ended.get("Failed"):
                why = failed.get("message") or failed.get("reason", "it says not why")
                raise ManifestError(f"job {name} failed: {why}; {logs} has more")
            time.sleep(POLL_S)

    # ---------------------------------------------------------------- cells

    def _replace_cell(self, cell: str) -> None:
        """Replace the pods of a cell that are of an older revision, and wait until all are ready.

        Its scheduler goes first: it drains, so that nothing runs when its workers go.
        """
        sets, pods = self._cell(cell)
        stale = [pod for pod in pods if _is_stale(pod, sets)]
        stale.sort(key=lambda pod: "scheduler" not in pod["metadata"]["name"])
        for pod in stale:
            name = pod["metadata"]["name"]
            self._say(f"cell {cell}: replacing {name}")
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
            self._run(
                *("delete", "pod", name, "--namespace", self._namespace, "--wait"),
                *("--timeout", f"{grace + 60}s"),
            )
        self._say(f"cell {cell}: waiting until it is ready")
        deadline = time.monotonic() + self._timeout_s
        while waiting := _unready(*self._cell(cell)):
            if time.monotonic() > deadline:
                raise ManifestError(
                    f"cell {cell} is not ready after {self._timeout_s:g} s: {', '.join(waiting)}; "
                    f"the cells after it were not touched"
                )
            time.sleep(POLL_S)

    def _cell(self, cell: str) -> tuple[dict[str, Object], list[Object]]:
        """Return a cell's StatefulSets by name, once they have seen what was applied, and pods."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            said = self._run(
                *("get", "statefulset,pod", "--namespace", self._namespace),
                *("--selector", f"{CELL_LABEL}={cell}", "--output=json"),
            )
            items = json.loads(said)["items"]
            sets = {
                each["metadata"]["name"]: each for each in items if each["kind"] == "StatefulSet"
            }
            if all(
                each.get("status", {}).get("observedGeneration") == each["metadata"]["generation"]
                for each in sets.values()
            ):
                return sets, [each for each in items if each["kind"] == "Pod"]
            if time.monotonic() > deadline:
                raise ManifestError(f"cell {cell}: its StatefulSets are not looked at")
            time.sleep(POLL_S)

    # ---------------------------------------------------------------- kubectl

    def _run(self, *args: str, text: str | None = None) -> str:
        done = self._try(*args, text=text)
        if done.returncode:
            raise ManifestError(f"kubectl {args[0]}: {done.stderr.strip()}")
        return done.stdout

    @staticmethod
    def _try(*args: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["kubectl", *args], input=text, check=False, capture_output=True, text=True
        )


def _owner(pod: Object) -> str:
    owners: list[dict[str, Any]] = pod["metadata"].get("ownerReferences", [])
    return owners[0]["name"] if owners else ""


def _is_stale(pod: Object, sets: Mapping[str, Object]) -> bool:
    owner = sets.get(_owner(pod))
    revision = pod["metadata"].get("labels", {}).get(REVISION_LABEL)
    return owner is not None and revision != owner["status"].get("updateRevision")


def _unready(sets: Mapping[str, Object], pods: list[Object]) -> list[str]:
    """Return what is not as it should be: pods that lack, are old, or are not ready."""
    waiting = []
    for name, each in sets.items():
        own = [pod for pod in pods if _owner(pod) == name]
        ready = [pod for pod in own if _is_ready(pod) and not _is_stale(pod, sets)]
        wanted = each["spec"].get("replicas", 1)
        if len(ready) < wanted:
            waiting.append(f"{name} has {len(ready)} of {wanted} pods ready")
    return waiting


def _is_ready(pod: Object) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod.get("status", {}).get("conditions", [])
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it says nothing"
