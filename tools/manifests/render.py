"""From an overlay, components and a tag to objects, by kustomize."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tools.manifests.objects import ManifestError, Manifests

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "deploy" / "k8s"
IMAGES = ("quire-router", "quire-scheduler", "quire-worker", "quire-worker-cuda", "quire-ray")
# The first that has components, replacements and labels in templates as the manifests use them.
MIN_KUSTOMIZE = (5, 0)


@dataclass(frozen=True, slots=True)
class Release:
    """What is deployed.

    Attributes:
        overlay: name of a directory in deploy/k8s/overlays.
        tag: of the images.
        registry: that they come from, "" for what nodes have by themselves.
        namespace: to deploy to.
        components: names of directories in deploy/k8s/components, on top of the overlay's.
    """

    overlay: str
    tag: str
    registry: str = ""
    namespace: str = "quire"
    components: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_directory("OVERLAY", K8S / "overlays", self.overlay)
        for component in self.components:
            _check_directory("COMPONENTS", K8S / "components", component)
        if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", self.tag) is None:
            raise ManifestError(f"IMAGE_TAG: not a tag: {self.tag!r}")
        if self.tag == "latest":
            raise ManifestError(
                "IMAGE_TAG: 'latest' names another image each time it is pulled; name a version"
            )
        if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", self.namespace) is None:
            raise ManifestError(f"NAMESPACE: not a name of a namespace: {self.namespace!r}")


def _check_directory(option: str, directory: Path, name: str) -> None:
    found = sorted(
        str(path.parent.relative_to(directory)) for path in directory.rglob("kustomization.yaml")
    )
    if name not in found:
        known = [each for each in found if not each.rpartition("/")[2].startswith("cell-")]
        raise ManifestError(f"{option}: no {name!r} here; there are {', '.join(known)}")


def render(release: Release, directory: Path = ROOT / "build" / "deploy") -> Manifests:
    """Return the objects of a release.

    Args:
        release: what to render.
        directory: for the kustomization that puts it together; made anew.

    Raises:
        ManifestError: there is no kustomize here, or it refuses.
    """
    command = find_kustomize()
    target = directory / release.overlay
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "kustomization.yaml").write_text(json.dumps(_kustomization(release, target)))
    done = subprocess.run([*command, str(target)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ManifestError(f"{' '.join(command)} refuses {release.overlay}: {done.stderr.strip()}")
    return Manifests(each for each in yaml.safe_load_all(done.stdout) if each)


def _kustomization(release: Release, target: Path) -> dict[str, object]:
    def relative(*parts: str) -> str:
        return os.path.relpath(K8S.joinpath(*parts), target)

    prefix = f"{release.registry.rstrip('/')}/" if release.registry else ""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": release.namespace,
        "resources": [relative("overlays", release.overlay)],
        "components": [relative("components", each) for each in release.components],
        "images": [
            {"name": name, "newName": prefix + name, "newTag": release.tag} for name in IMAGES
        ],
    }


def find_kustomize() -> Sequence[str]:
    """Return the command that renders a directory: kubectl's kustomize, or kustomize itself.

    Raises:
        ManifestError: neither is installed, or in a version that reads these manifests.
    """
    too_old = []
    for probe, command in (
        (("kubectl", "version", "--client", "--output=json"), ("kubectl", "kustomize")),
        (("kustomize", "version"), ("kustomize", "build")),
    ):
        if shutil.which(probe[0]) is None:
            continue
        said = subprocess.run(probe, check=False, capture_output=True, text=True).stdout
        found = re.search(r"v(\d+)\.(\d+)\.\d+", _kustomize_version(said))
        if found and (int(found[1]), int(found[2])) >= MIN_KUSTOMIZE:
            return command
        too_old.append(f"{probe[0]} has kustomize {found[0] if found else 'of an unknown version'}")
    least = ".".join(map(str, MIN_KUSTOMIZE))
    raise ManifestError(
        f"kubectl 1.27 or later is needed, or kustomize {least} or later: "
        + (", ".join(too_old) or "neither is installed")
        + "; see https://kubernetes.io/docs/tasks/tools"
    )


def _kustomize_version(said: str) -> str:
    try:
        return str(json.loads(said).get("kustomizeVersion", ""))
    except json.JSONDecodeError:
        return said
