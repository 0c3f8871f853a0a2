"""`make deploy`: what it prints, writes and calls. Its kubectl keeps a cluster in a file."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.manifests.rendering import rendered
from tools.deploy import write
from tools.manifests import cluster
from tools.manifests.objects import ManifestError
from tools.manifests.render import Release

ROOT = Path(__file__).resolve().parents[3]
DOUBLE = Path(__file__).with_name("kubectl_double.py")
PRESENT = {
    "customresourcedefinition/certificates.cert-manager.io",
    "customresourcedefinition/issuers.cert-manager.io",
    "customresourcedefinition/leaderworkersets.leaderworkerset.x-k8s.io",
    "Secret/quire-api-keys",
    "PersistentVolumeClaim/quire-model",
}


@dataclass
class Double:
    """A cluster in a file."""

    directory: Path

    def set(self, **fields: Any) -> None:
        file = self.directory / "cluster.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory / "cluster.json").read_text())
        return state

    def calls(self, *words: str) -> list[list[str]]:
        """Calls that begin with these words, since the last time this was asked."""
        file = self.directory / "calls.jsonl"
        calls = [json.loads(line) for line in file.read_text().splitlines()]
        file.unlink()
        return [call for call in calls if tuple(call[: len(words)]) == words]


@pytest.fixture
def double(tmp_path: Path, monkeypatch) -> Double:
    for overlay, tag in (("prod", "v1"), ("prod", "v2"), ("lws", "v1")):
        rendered(overlay, tag=tag)  # by the real one, and kept
    for tag in ("v1", "v2"):
        rendered("cpu", "model", "pull", tag=tag)
    command = tmp_path / "bin" / "kubectl"
    command.parent.mkdir()
    # Its own interpreter, whatever `python3` is on the path.
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {DOUBLE} "$@"\n')
    command.chmod(0o755)
    state = {
        "server": "32",
        "present": sorted(PRESENT),
        "unready": [],
        "refuse": "",
        "namespaces": [],
        "sets": {},
        "pods": {},
        "jobs": {},
        "job_ends": "Complete",
        "asked": 0,
    }
    (tmp_path / "cluster.json").write_text(json.dumps(state))
    monkeypatch.setenv("QUIRE_TEST_CLUSTER", str(tmp_path))
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(cluster, "POLL_S", 0.01)
    return Double(tmp_path)


def apply(overlay: str, *components: str, tag: str = "v1", timeout_s: float = 30) -> list[str]:
    """Apply an overlay; return the messages."""
    messages: list[str] = []
    manifests = rendered(overlay, *components, tag=tag)
    file = ROOT / write(manifests, Release(overlay, tag))
    cluster.Cluster("quire", messages.append, timeout_s).apply(manifests, file)
    return messages


def test_a_first_deployment_applies_everything_and_waits_for_it(double: Double) -> None:
    messages = apply("prod")
    assert messages == [
        "waiting for deployment quire-router",
        "cell a: waiting until it is ready",
        "cell b: waiting until it is ready",
    ]
    assert double.state["namespaces"][0] == "quire"
    calls = double.calls()
    applied = [call for call in calls if call[0] == "apply"]
    assert all(call[1] == "--server-side" for call in applied)
    # The namespace first: what is looked for before the rest lies in it.
    assert [call[-1] for call in applied] == ["-", str(ROOT / "build" / "deploy" / "prod.yaml")]
    assert not [call for call in calls if call[0] == "delete"]


def test_an_upgrade_replaces_one_cell_after_the_other_each_from_its_scheduler(
    double: Double,
) -> None:
    apply("prod")
    double.calls()
    messages = apply("prod", tag="v2")
    assert [line for line in messages if line.startswith("cell")] == [
        f"cell {cell}: {what}"
        for cell in ("a", "b")
        for what in (
            f"replacing quire-scheduler-{cell}-0",
            f"replacing quire-worker-{cell}-0",
            f"replacing quire-worker-{cell}-1",
            "waiting until it is ready",
        )
    ]
    images = {pod["spec"]["containers"][0]["image"] for pod in double.state["pods"].values()}
    assert all(image.endswith(":v2") for image in images)
    # Longer than the scheduler may take to drain.
    deleted = double.calls("delete", "pod", "quire-scheduler-a-0")[0]
    assert deleted[-2:] == ["--timeout", "150s"]
    assert apply("prod", tag="v2")[1:] == [
        "cell a: waiting until it is ready",
        "cell b: waiting until it is ready",
    ]


def test_what_its_own_controller_replaces_is_waited_for(double: Double) -> None:
    assert apply("lws") == [
        "waiting for deployment quire-router",
        "waiting for LeaderWorkerSet quire-cell",
    ]
    (call,) = double.calls("wait")
    assert call[1:] == [
        *("leaderworkerset/quire-cell", "--namespace", "quire"),
        *("--for", "condition=Available", "--timeout", "30s"),
    ]


def test_an_upgrade_that_does_not_come_up_stops_at_the_first_cell(double: Double) -> None:
    apply("prod")
    double.calls()
    double.set(unready=["quire-worker-a-1"])
    with pytest.raises(ManifestError) as raised:
        apply("prod", tag="v2", timeout_s=0.5)
    assert str(raised.value) == (
        "cell a is not ready after 0.5 s: quire-worker-a has 1 of 2 pods ready; "
        "the cells after it were not touched"
    )
    assert {call[2] for call in double.calls("delete", "pod")} == {
        "quire-scheduler-a-0",
        "quire-worker-a-0",
        "quire-worker-a-1",
    }


def test_the_version_before_comes_back_by_the_same_command(double: Double) -> None:
    """A new version whose first cell does not come up, then the old one's tag."""
    apply("prod")
    double.set(unready=["quire-worker-a-1"])
    with pytest.raises(ManifestError, match="the cells after it were not touched"):
        apply("prod", tag="v2", timeout_s=0.5)
    double.calls()
    double.set(unready=[])
    messages = apply("prod", tag="v1")
    assert messages[1:] == [
        "cell a: replacing quire-scheduler-a-0",
        "cell a: replacing quire-worker-a-0",
        "cell a: replacing quire-worker-a-1",
        "cell a: waiting until it is ready",
        "cell b: waiting until it is ready",
    ]
    images = {pod["spec"]["containers"][0]["image"] for pod in double.state["pods"].values()}
    assert all(image.endswith(":v1") for image in images)


def test_a_pull_runs_again_and_before_the_pods_that_read_the_model(double: Double) -> None:
    waiting = "waiting for job quire-pull: kubectl -n quire logs job/quire-pull --follow"
    for tag in ("v1", "v2"):
        assert apply("cpu", "model", "pull", tag=tag)[:2] == [
            waiting,
            "waiting for deployment quire-router",
        ]
    assert double.state["jobs"].keys() == {"quire-pull"}


def test_a_pull_that_fails_ends_the_deployment(double: Double) -> None:
    double.set(job_ends="Failed")
    with pytest.raises(ManifestError) as raised:
        apply("cpu", "model", "pull")
    assert str(raised.value) == (
        "job quire-pull failed: no room; kubectl -n quire logs job/quire-pull has more"
    )
    assert not double.calls("rollout")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"server": None},
            "no cluster answers kubectl: The connection to the server localhost:8080 was refused; "
            "`kubectl config current-context` says which one it asks",
        ),
        ({"server": "30"}, "the cluster has Kubernetes 1.30; 1.31 or later is needed"),
        (
            {"present": sorted(PRESENT - {"customresourcedefinition/issuers.cert-manager.io"})},
            "the cluster knows no Issuer: install cert-manager first",
        ),
        (
            {"present": sorted(PRESENT - {"Secret/quire-api-keys"})},
            "to be made first:\n  Secret quire-api-keys: quire keys add NAME --file keys.jsonl && "
            "kubectl -n quire create secret generic quire-api-keys --from-file=keys.jsonl",
        ),
        ({"refuse": "rollout"}, "kubectl rollout: error: cannot rollout"),
    ],
)
def test_what_is_missing_is_reported_before_anything_runs(
    double: Double, fields: dict[str, Any], message: str
) -> None:
    double.set(**fields)
    with pytest.raises(ManifestError) as raised:
        apply("prod")
    assert str(raised.value) == message
    assert bool(double.state["sets"]) == ("refuse" in fields)


def test_a_missing_kubectl_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ManifestError, match="kubectl is not installed, and APPLY=1 needs it"):
        cluster.Cluster("quire", print)


def deploy(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tools.deploy", *args]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def test_without_apply_it_writes_what_it_would_apply() -> None:
    done = deploy("--overlay", "cpu", "--tag", "v7", "--components", "mtls", "api-keys")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("build/deploy/cpu.yaml: ")
    assert "To be made first: Secret quire-api-keys: quire keys add" in done.stdout
    objects = list(yaml.safe_load_all((ROOT / "build" / "deploy" / "cpu.yaml").read_text()))
    (router,) = (each for each in objects if each["kind"] == "Deployment")
    assert router["spec"]["template"]["spec"]["containers"][0]["image"] == "quire-router:v7"


def test_with_a_finding_nothing_is_applied() -> None:
    done = deploy("--overlay", "cpu", "--tag", "v1", "--components", "autoscaling/cells", "--apply")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "cpu/ScaledObject/quire-cell: autoscaler: LeaderWorkerSet quire-cell is not here",
        "error: 1 findings; nothing is applied",
    ]
