"""Pins what the images hold, and fetches it: images are built from these wheels, without a network.

    lock.py resolve [NAME ...]   NAME.in -> NAME.txt, with hashes
    lock.py fetch [NAME ...]     NAME.txt -> build/wheelhouse/NAME/*.whl

Lists are in deploy/docker/requirements, and in bench/requirements for a machine with a GPU and no
network. By default it is all but worker-cuda and flashinfer. What is resolved by name keeps to the
versions of the others.

A NAME.in lists requirements as pip reads them. Three lines of its comments mean something here:
`# leave out: PACKAGE ...` drops packages that a requirement names and that are never imported, with
what only they need; `# index: URL` is a further index, for fetching; `# python: 3.X` is the Python
that it is for, if not that of the images.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "deploy/docker/requirements", ROOT / "bench/requirements")
WHEELHOUSE = ROOT / "build/wheelhouse"

# What runs in an image, whatever resolves for it: CPython 3.11 on a Debian 12.
PYTHON = "3.11"
GLIBC = range(36, 4, -1)  # 2.36, and all before it
# What most builds have no use for, gigabytes of it.
BY_NAME_ONLY = {"worker-cuda", "flashinfer"}


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


def _source(name: str) -> Path:
    """Return NAME.in.

    Raises:
        SystemExit: there is none.
    """
    for folder in FOLDERS:
        if (path := folder / f"{name}.in").exists():
            return path
    raise SystemExit(f"error: NAME: must be a list of requirements, got {name}")


def _python(text: str) -> str:
    """Return the version of Python that the text of a NAME.in is for."""
    return (_directive(text, "python") or [PYTHON])[0]


def _target(python: str) -> list[str]:
    """Return pip's options for a version of Python on x86-64."""
    return [
        *["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"],
        *(f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC),
        "--platform=manylinux2014_x86_64",
    ]


def _environment(python: str) -> dict[str, str]:
    """Return what markers of requirements see there."""
    return {
        "python_version": python,
        "python_full_version": python,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }


def resolve(names: Sequence[str]) -> None:
    """Write each NAME.txt: the packages of NAME.in in their newest versions that fit, with hashes.

    What a lock of another name pins keeps its version.
    """
    others = _write_constraints(names)
    for name in names:
        _resolve(name, others)


def _resolve(name: str, others: Path) -> None:
    source = _source(name)
    text = source.read_text(encoding="utf-8")
    python = _python(text)
    report = WHEELHOUSE / f"{name}.report.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *["install", "--dry-run", "--ignore-installed", "--target", str(WHEELHOUSE / "none")],
        *[*_target(python), "--report", str(report), "-r", str(source), "-c", str(others)],
    ]
    _pip(command, text, f"{source.name} cannot be resolved")
    packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    left_out: set[str] = {canonicalize_name(x) for x in _directive(text, "leave out")}
    kept = _reachable(packages, left_out, python)
    lines = [f"# Made from {source.name} by `make lock`, for CPython {python} on x86-64."]
    for package in sorted(packages, key=lambda x: canonicalize_name(x["metadata"]["name"])):
        metadata = package["metadata"]
        if canonicalize_name(metadata["name"]) in kept:
            digest = _sha256(package["download_info"]["archive_info"])
            pin = f"{canonicalize_name(metadata['name'])}=={metadata['version']}"
            lines.append(f"{pin} \\\n    --hash=sha256:{digest}")
    source.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{name}.txt: {len(kept)} packages")


def _write_constraints(names: Sequence[str]) -> Path:
    """Write what all locks pin but those of these names; return the file."""
    pins: dict[str, str] = {}
    for lock in sorted(path for folder in FOLDERS for path in folder.glob("*.txt")):
        if lock.stem not in names:
            pins |= dict(re.findall(r"^([a-z0-9-]+)==([^\s+]+) ", lock.read_text(), re.MULTILINE))
    path = WHEELHOUSE / "constraints.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
    return path


def _sha256(archive: dict[str, Any]) -> str:
    """Return the hash that pip reports of a wheel; before 23.1 it knew no other kind beside it."""
    hashes: dict[str, str] = archive.get("hashes", {})
    return hashes.get("sha256") or str(archive["hash"]).removeprefix("sha256=")


def _reachable(
    packages: list[dict[str, object]], left_out: set[str], python: str = PYTHON
) -> set[str]:
    """Return the names of packages that are asked for, or needed by one that is kept."""
    environment = _environment(python)
    needs: dict[str, list[Requirement]] = {}
    # Packages, each with one of its extras, "" for none.
    waiting: list[tuple[str, str]] = []
    for package in packages:
        metadata = package["metadata"]
        assert isinstance(metadata, dict)
        name = canonicalize_name(metadata["name"])
        needs[name] = [Requirement(line) for line in metadata.get("requires_dist", [])]
        if package["requested"]:
            extras = package.get("requested_extras") or []
            assert isinstance(extras, list)
            waiting += [(name, extra) for extra in ("", *extras)]
    kept: set[tuple[str, str]] = set()
    while waiting:
        wanted, extra = waiting.pop()
        if (wanted, extra) in kept or wanted in left_out or wanted not in needs:
            continue
        kept.add((wanted, extra))
        for need in needs[wanted]:
            if not need.marker or need.marker.evaluate({**environment, "extra": extra}):
                waiting += [(canonicalize_name(need.name), each) for each in ("", *need.extras)]
    return {name for name, _ in kept}


def fetch(name: str) -> None:
    """Fill build/wheelhouse/NAME with what NAME.txt pins; does nothing where that is there."""
    source = _source(name)
    lock = source.with_suffix(".txt")
    directory = WHEELHOUSE / name
    stamp = directory / ".fetched"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    directory.mkdir(parents=True, exist_ok=True)
    for wheel in directory.glob("*.whl"):
        wheel.unlink()
    text = source.read_text(encoding="utf-8")
    command = [
        *["download", "--no-deps", "--require-hashes", *_target(_python(text))],
        *["--dest", str(directory), "-r", str(lock)],
    ]
    _pip(command, text, f"{lock.name} cannot be fetched")
    stamp.write_text(digest, encoding="utf-8")
    print(f"build/wheelhouse/{name}: {len(list(directory.glob('*.whl')))} wheels")


def main() -> None:
    """Read the command line."""
    if len(sys.argv) < 2 or sys.argv[1] not in ("resolve", "fetch"):
        raise SystemExit(__doc__)
    every = {path.stem for folder in FOLDERS for path in folder.glob("*.in")}
    names = sys.argv[2:] or sorted(every - BY_NAME_ONLY)
    if sys.argv[1] == "resolve":
        resolve(names)
    else:
        for name in names:
            fetch(name)


if __name__ == "__main__":
    main()
