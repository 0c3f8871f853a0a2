"""Overlays and components render to objects without a finding; what cannot be is refused."""

import json
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from router.http.app import make_app
from tests.unit.manifests.rendering import OVERLAYS, findings, fresh, rendered
from tools.manifests.objects import ManifestError
from tools.manifests.render import K8S, Release, find_kustomize

# Each component on an overlay that has what it goes with.
COMPONENTS = {
    "api-keys": ("cpu", "api-keys"),
    "autoscaling/cells": ("lws", "autoscaling/cells"),
    "autoscaling/routers": ("cpu", "autoscaling/routers"),
    "gpu": ("cpu", "gpu"),
    "grpcroute": ("cpu", "grpcroute"),
    "inference-pool": ("cpu", "inference-pool"),
    "leaderworkerset": ("cpu", "model", "mtls"),
    "kuberay": ("ray",),
    "model": ("cpu", "model"),
    "mtls": ("cpu", "mtls"),
    "pull": ("cpu", "model", "pull"),
    "servicemonitor": ("cpu", "servicemonitor"),
    "tracing": ("cpu", "tracing"),
}
COMBINATIONS = (
    *((overlay,) for overlay in OVERLAYS),
    *COMPONENTS.values(),
    ("lws", "gpu", "model", "mtls", "api-keys", "servicemonitor", "autoscaling/cells"),
    ("lws", "inference-pool", "grpcroute", "servicemonitor", "api-keys", "tracing"),
    ("prod", "servicemonitor", "autoscaling/routers", "grpcroute", "tracing"),
)


@pytest.mark.parametrize("combination", dict.fromkeys(COMBINATIONS), ids="+".join)
def test_there_are_no_findings(combination: tuple[str, ...]) -> None:
    assert [str(each) for each in findings(fresh(*combination))] == []


def test_every_overlay_and_component_is_among_them() -> None:
    def names(kind: str) -> set[str]:
        found = (K8S / kind).rglob("kustomization.yaml")
        paths = {str(path.parent.relative_to(K8S / kind)) for path in found}
        return {path for path in paths if "cell-" not in path}

    assert names("overlays") == set(OVERLAYS)
    assert names("components") == set(COMPONENTS)


def test_all_images_have_the_tag_and_the_registry() -> None:
    for overlay in OVERLAYS:
        for pod in rendered(overlay).pods:
            for container in pod.containers:
                registry, _, image = container["image"].partition("/")
                assert registry == "registry.example"
                assert image.startswith("quire-")
                assert image.endswith(":v1")


def test_the_components_of_prod_take_effect() -> None:
    manifests = rendered("prod")
    workers = [pod for pod in manifests.pods if pod.command == "worker"]
    assert {pod.cell for pod in workers} == {"a", "b"}
    assert all("quire-worker-cuda:" in pod.main["image"] for pod in workers)
    options = next(
        each["data"]
        for each in manifests.of_kind("ConfigMap")
        if each["metadata"]["name"].startswith("quire-options")
    )
    assert options["QUIRE_INSECURE"] == "0"
    assert options["QUIRE_TLS_DIR"] == "/etc/quire/tls"
    assert options["QUIRE_API_KEYS"] == "/etc/quire/keys/keys.jsonl"


def test_a_changed_option_changes_the_pods() -> None:
    """Otherwise they would go on with the old one."""
    cpu, gpu = (rendered(overlay).pods[0].main["envFrom"] for overlay in ("cpu", "gpu"))
    assert cpu != gpu


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"overlay": "none"}, "OVERLAY: no 'none' here; there are cpu, gpu, lws, prod, ray"),
        ({"overlay": "../base/cell"}, "OVERLAY: no '../base/cell' here"),
        ({"components": ("none",)}, "COMPONENTS: no 'none' here"),
        ({"tag": "latest"}, "IMAGE_TAG: 'latest' names another image each time"),
        ({"tag": ""}, "IMAGE_TAG: not a tag: ''"),
        ({"tag": "a b"}, "IMAGE_TAG: not a tag: 'a b'"),
        ({"namespace": "Quire"}, "NAMESPACE: not a name of a namespace: 'Quire'"),
    ],
)
def test_a_release_that_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError) as raised:
        Release(**{"overlay": "cpu", "tag": "v1", **fields})
    assert str(raised.value).startswith(message)


def command(directory: Path, name: str, output: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\ncat <<'E'\n{output}\nE\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ({"kubectl": json.dumps({"kustomizeVersion": "v5.5.0"})}, ("kubectl", "kustomize")),
        ({"kustomize": "v5.0.1"}, ("kustomize", "build")),
        (
            {"kubectl": json.dumps({"kustomizeVersion": "v2.0.3"}), "kustomize": "v5.4.2"},
            ("kustomize", "build"),
        ),
        ({"kubectl": json.dumps({"kustomizeVersion": "v4.5.7"})}, "kubectl has kustomize v4.5.7"),
        ({}, "neither is installed"),
    ],
)
def test_kustomize_is_found_or_missed_in_one_line(
    tmp_path: Path, monkeypatch, commands: dict[str, str], found: tuple[str, ...] | str
) -> None:
    for name, output in commands.items():
        command(tmp_path, name, output)
    (tmp_path / "cat").symlink_to("/bin/cat")
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    if isinstance(found, tuple):
        assert find_kustomize() == found
    else:
        with pytest.raises(ManifestError, match=found):
            find_kustomize()


def test_a_gateway_leads_to_every_path_that_takes_requests() -> None:
    unused = Mock()  # no request comes
    app = make_app(unused, unused, unused, why_not_serving=str, keep_alive_s=1.0, hold_s=1.0)
    (route,) = rendered("cpu", "inference-pool").of_kind("HTTPRoute")
    led = [match["path"]["value"] for rule in route["spec"]["rules"] for match in rule["matches"]]
    paths = [each.path for each in app.routes if "POST" in each.methods]
    assert len(paths) > 10
    assert [
        path
        for path in paths
        if not any(path == each or path.startswith(f"{each}/") for each in led)
    ] == []
