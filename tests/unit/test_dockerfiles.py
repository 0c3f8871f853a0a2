"""What can be checked of the images without building them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.wanted import wanted

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
LISTS = sorted((DOCKER / "requirements").glob("*.in"))


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def declared(*extras: str) -> list[str]:
    """What the package needs, with extras."""
    lists = project()["project"]
    found = dict.fromkeys(lists["dependencies"])
    for extra in extras:
        for line in lists["optional-dependencies"][extra]:
            requirement = Requirement(line)
            own = requirement.name == "quire-serve"
            found |= dict.fromkeys(declared(*requirement.extras) if own else [line])
    return list(found)


def requirements(path: Path) -> dict[str, Requirement]:
    """What a NAME.in asks for, itself and by names of pyproject.toml."""
    found: dict[str, Requirement] = {}
    for line in path.read_text().splitlines():
        own = [line] if line and not line.startswith("#") else []
        of_package = wanted(line.split()[2:]) if line.startswith("# pyproject: ") else []
        for requirement in map(Requirement, own + of_package):
            found[canonicalize_name(requirement.name)] = requirement
    return found


def pins(name: str) -> dict[str, str]:
    """Versions that a NAME.txt pins."""
    text = (DOCKER / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("dockerfile", sorted(DOCKER.glob("Dockerfile*")), ids=lambda p: p.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", LISTS, ids=names(LISTS))
def test_a_lock_pins_all_that_is_asked_for_with_hashes(path: Path) -> None:
    lock = path.with_suffix(".txt").read_text()
    pinned = pins(path.stem)
    for name, requirement in requirements(path).items():
        assert requirement.specifier.contains(pinned[name]), requirement
    assert len(pinned) == len(re.findall(r"--hash=sha256:[0-9a-f]{64}$", lock, re.MULTILINE))


@pytest.mark.parametrize("path", LISTS, ids=names(LISTS))
def test_images_ask_for_no_more_than_the_package_does(path: Path) -> None:
    allowed = [*declared("all", "ray", "traces"), *project()["build-system"]["requires"]]
    allowed += ["cmake>=3.26", "ninja>=1.11", "pip>=25.1"]  # what scikit-build-core fetches; pip
    by_name = {canonicalize_name(Requirement(line).name): Requirement(line) for line in allowed}
    for name, requirement in requirements(path).items():
        if name == "torch":  # pinned to a build
            continue
        assert requirement.specifier == by_name[name].specifier, requirement


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("scheduler", ("scheduler",)),
        ("router", ("router",)),
        ("worker", ("worker",)),
        ("ray", ("all", "ray")),
    ],
)
def test_an_image_holds_the_extras_of_its_services(name: str, extras: tuple[str, ...]) -> None:
    """And OpenTelemetry, which all have."""
    asked_for = requirements(DOCKER / "requirements" / f"{name}.in").keys()
    assert {Requirement(line).name for line in declared(*extras, "traces")} == asked_for


def test_all_images_hold_the_same_versions() -> None:
    found: dict[str, set[str]] = {}
    for path in LISTS:
        for name, version in pins(path.stem).items():
            found.setdefault(name, set()).add(version.partition("+")[0])  # of whatever build
    assert {name: versions for name, versions in found.items() if len(versions) > 1} == {}


@pytest.mark.parametrize("name", ["router", "scheduler", "router-transformers"])
def test_routers_and_schedulers_have_no_torch(name: str) -> None:
    assert "torch" not in pins(name)


def test_a_router_holds_nothing_that_could_fetch_a_url() -> None:
    clients = {"huggingface-hub", "httpx2", "httpcore2", "requests", "urllib3", "aiohttp"}
    assert not clients & pins("router").keys()
    assert not clients & pins("scheduler").keys()
