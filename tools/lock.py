"""Pins what the images hold, and fetches it: images are built from these wheels, without a network.

    lock.py resolve [NAME ...]   deploy/docker/requirements/NAME.in -> NAME.txt, with hashes
    lock.py fetch [NAME ...]     NAME.txt -> build/wheelhouse/NAME/*.whl

A NAME.in lists requirements as pip reads them. Two lines of its comments mean something here:
`# leave out: PACKAGE ...` drops packages that a requirement names and that the image never
imports, with what only they need; `# index: URL` is a further index, for fetching.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "deploy/docker/requirements"
WHEELHOUSE = ROOT / "build/wheelhouse"

# What runs in an image, whatever resolves for it: CPython 3.11 on a Debian 12.
PYTHON = "3.11"
TARGET = [
    *["--only-binary", ":all:", "--python-version", PYTHON, "--implementation", "cp"],
    *["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64"],
    *["--platform", "manylinux2014_x86_64"],
]
ENVIRONMENT = {
    "python_version": PYTHON,
    "python_full_version": PYTHON,
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "sys_platform": "linux",
    "os_name": "posix",
    "extra": "",
}


# Their index cannot be reached from everywhere.
BY_NAME_ONLY = {"worker-cuda"}


def _pip(arguments: Sequence[str], source: str, failure: str) -> None:
    """Run pip; if it fails, again with the further indexes that the text of a NAME.in gives.

    Raises:
        SystemExit: it has failed; says `failure`, and what pip said.
    """
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    indexes = [f"--extra-index-url={url}" for url in _directive(source, "index")]
    for attempt in (command, [*command, *indexes]):
        done = subprocess.run(attempt, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
    raise SystemExit(f"error: {failure}:\n{done.stderr}")


def _directive(text: str, key: str) -> list[str]:
    prefix = f"# {key}:"
    lines = [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]
    return [word for line in lines for word in line.split()]


def resolve(name: str) -> None:
    """Write NAME.txt: every package of NAME.in in its newest version that fits, with its hash."""
    source = REQUIREMENTS / f"{name}.in"
    text = source.read_text(encoding="utf-8")
    report = WHEELHOUSE / f"{name}.report.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *["install", "--dry-run", "--ignore-installed", "--target", str(WHEELHOUSE / "none")],
        *[*TARGET, "--report", str(report), "-r", str(source)],
    ]
    _pip(command, text, f"{source.name} cannot be resolved")
    packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    kept = _reachable(packages, {canonicalize_name(x) for x in _directive(text, "leave out")})
    lines = [f"# Made from {source.name} by `make lock`, for CPython {PYTHON} on x86-64."]
    for package in sorted(packages, key=lambda x: canonicalize_name(x["metadata"]["name"])):
        metadata = package["metadata"]
        if canonicalize_name(metadata["name"]) in kept:
            digest = _sha256(package["download_info"]["archive_info"])
            pin = f"{canonicalize_name(metadata['name'])}=={metadata['version']}"
            lines.append(f"{pin} \\\n    --hash=sha256:{digest}")
    (REQUIREMENTS / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{name}.txt: {len(kept)} packages")


def _sha256(archive: dict[str, Any]) -> str:
    """Return the hash that pip reports of a wheel; before 23.1 it knew no other kind beside it."""
    hashes: dict[str, str] = archive.get("hashes", {})
    return hashes.get("sha256") or str(archive["hash"]).removeprefix("sha256=")


def _reachable(packages: list[dict[str, object]], left_out: set[str]) -> set[str]:
    """Return the names of packages that are asked for, or needed by one that is kept."""
    needs: dict[str, set[str]] = {}
    asked_for: list[str] = []
    for package in packages:
        metadata = package["metadata"]
        assert isinstance(metadata, dict)
        name = canonicalize_name(metadata["name"])
        extras = ["", *(package.get("requested_extras") or [])]  # type: ignore[misc]
        needs[name] = set()
        for line in metadata.get("requires_dist", []):
            need = Requirement(line)
            if not need.marker or any(
                need.marker.evaluate({**ENVIRONMENT, "extra": str(extra)}) for extra in extras
            ):
                needs[name].add(canonicalize_name(need.name))
        if package["requested"]:
            asked_for.append(name)
    kept: set[str] = set()
    waiting = asked_for
    while waiting:
        wanted = waiting.pop()
        if wanted in kept or wanted in left_out or wanted not in needs:
            continue
        kept.add(wanted)
        waiting += needs[wanted]
    return kept


def fetch(name: str) -> None:
    """Fill build/wheelhouse/NAME with what NAME.txt pins; does nothing where that is there."""
    lock = REQUIREMENTS / f"{name}.txt"
    directory = WHEELHOUSE / name
    stamp = directory / ".fetched"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    directory.mkdir(parents=True, exist_ok=True)
    for wheel in directory.glob("*.whl"):
        wheel.unlink()
    text = (REQUIREMENTS / f"{name}.in").read_text(encoding="utf-8")
    command = [
        *["download", "--no-deps", "--require-hashes", *TARGET],
        *["--dest", str(directory), "-r", str(lock)],
    ]
    _pip(command, text, f"{lock.name} cannot be fetched")
    stamp.write_text(digest, encoding="utf-8")
    print(f"build/wheelhouse/{name}: {len(list(directory.glob('*.whl')))} wheels")


def main() -> None:
    """Read the command line."""
    commands = {"resolve": resolve, "fetch": fetch}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    every = {path.stem for path in REQUIREMENTS.glob("*.in")}
    names = sys.argv[2:] or sorted(every - BY_NAME_ONLY)
    for name in names:
        commands[sys.argv[1]](name)


if __name__ == "__main__":
    main()
