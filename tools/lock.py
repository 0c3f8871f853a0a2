"""Pins what images and .venv hold, and fetches it for images, which are built without a network.

    python -m tools.lock resolve [NAME ...]   NAME.in -> NAME.txt, in the newest versions that fit
    python -m tools.lock update [NAME ...]    the same; what is pinned keeps its version if it fits
    python -m tools.lock fetch [NAME ...]     NAME.txt -> build/wheelhouse/NAME/*.whl
    python -m tools.lock check                whether each NAME.txt is what its NAME.in wants

Lists are in deploy/docker/requirements, in tools/requirements for .venv, and in bench/requirements
for a machine with a GPU and no network. By default it is all, but of fetched ones worker-cuda,
flashinfer, and what has no hashes. What is resolved by name keeps to the versions of the others.

A NAME.in lists requirements as pip reads them. Some lines of its comments mean something here:
`# pyproject: NAME ...` stands for what pyproject.toml requires there (tools/wanted.py);
`# leave out: PACKAGE ...` drops packages that a requirement names and that are never imported, with
what only they need; `# index: URL` is a further index, for fetching; `# python: 3.X` is the Python
that it is for, if not that of the images; `# hashes: none` makes constraints for pip.

The first lines of a NAME.txt have a digest of what was wanted and what came of it, by which `check`
needs no network.
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

from tools.wanted import wanted

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = tuple(
    ROOT / folder
    for folder in ("deploy/docker/requirements", "tools/requirements", "bench/requirements")
)
WHEELHOUSE = ROOT / "build/wheelhouse"

# What runs in an image, whatever resolves for it: CPython 3.11 on a Debian 12.
PYTHON = "3.11"
GLIBC = range(36, 4, -1)  # 2.36, and all before it
# What most builds have no use for, gigabytes of it.
FETCHED_BY_NAME_ONLY = {"worker-cuda", "flashinfer"}
# torch brings those of the release that it was made with, beside a compiler of another one.
_MAY_DIFFER = "nvidia-"
_PIN = re.compile(r"^([a-z0-9-]+)==([^\s+]+)", re.MULTILINE)
_DIGEST = "# Digest of this and of what was wanted: "


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


def _names() -> list[str]:
    """Return the names of all lists, that of what tests run with first."""
    names = {path.stem for folder in FOLDERS for path in folder.glob("*.in")}
    return sorted(names, key=lambda name: (name != "dev", name))


def _wanted(text: str) -> list[str]:
    """Return the requirements of the text of a NAME.in, those of pyproject.toml among them."""
    own = [line.strip() for line in text.splitlines()]
    return wanted(_directive(text, "pyproject")) + [x for x in own if x and x[0] != "#"]


def _pins(text: str) -> dict[str, str]:
    """Return the public versions in the text of a NAME.txt."""
    return dict(_PIN.findall(text))


def _digest(source: str, pinned: str) -> str:
    """Return the digest of what the text of a NAME.in wants, and of what was pinned for it."""
    decided = [_directive(source, key) for key in ("leave out", "python", "hashes")]
    content = json.dumps([sorted(_wanted(source)), decided, pinned])
    return hashlib.sha256(content.encode()).hexdigest()


def faults() -> list[str]:
    """Return what is wrong with locks, a line each: no network is needed to know."""
    found = []
    seen: dict[str, tuple[str, str]] = {}
    for name in _names():
        source = _source(name)
        lock = source.with_suffix(".txt")
        text = lock.read_text(encoding="utf-8") if lock.exists() else ""
        stated = re.search(f"^{_DIGEST}(.*)\n", text, re.MULTILINE)
        pinned = text[stated.end() :] if stated else ""
        if not stated or stated[1] != _digest(source.read_text(encoding="utf-8"), pinned):
            found.append(
                f"{lock.name}: must be what {source.name} and pyproject.toml want, got another "
                f"digest; run `make lock UPDATE=1 NAMES={name}`"
            )
        for package, version in _pins(pinned).items():
            other, where = seen.setdefault(package, (version, lock.name))
            if other != version and not package.startswith(_MAY_DIFFER):
                found.append(f"{lock.name}: {package} must be {other} as in {where}, got {version}")
    return found


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


def resolve(names: Sequence[str], update: bool = False) -> None:
    """Write each NAME.txt: the packages of NAME.in in their newest versions that fit, with hashes.

    What a lock of another name pins keeps its version; with update, what is pinned, if it fits.
    """
    waiting = list(names)
    while waiting:
        source = _source(waiting[0])
        text = source.read_text(encoding="utf-8")
        _resolve(source, text, _write_constraints(_wanted(text), () if update else waiting))
        waiting.pop(0)


def _resolve(source: Path, text: str, others: Path) -> None:
    name = source.stem
    python = _python(text)
    requirements = WHEELHOUSE / f"{name}.in"
    requirements.write_text("".join(f"{line}\n" for line in _wanted(text)), encoding="utf-8")
    report = WHEELHOUSE / f"{name}.report.json"
    command = [
        *["install", "--dry-run", "--ignore-installed", "--target", str(WHEELHOUSE / "none")],
        *[*_target(python), "--report", str(report), "-r", str(requirements), "-c", str(others)],
    ]
    _pip(command, text, f"{source.name} cannot be resolved")
    packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    left_out: set[str] = {canonicalize_name(x) for x in _directive(text, "leave out")}
    kept = _reachable(packages, left_out, python)
    with_hashes = _directive(text, "hashes") != ["none"]
    pinned = ""
    for package in sorted(packages, key=lambda x: canonicalize_name(x["metadata"]["name"])):
        metadata = package["metadata"]
        if (canonical := canonicalize_name(metadata["name"])) not in kept:
            continue
        if with_hashes:
            digest = _sha256(package["download_info"]["archive_info"])
            pinned += f"{canonical}=={metadata['version']} \\\n    --hash=sha256:{digest}\n"
        else:
            pinned += f"{canonical}=={metadata['version'].partition('+')[0]}\n"
    write_lock(source, pinned)
    print(f"{name}.txt: {len(kept)} packages", flush=True)


def write_lock(source: Path, pinned: str) -> None:
    """Write NAME.txt beside NAME.in: a digest, and pins as pip reads them."""
    text = source.read_text(encoding="utf-8")
    made = f"# Made from {source.name} by `make lock`, for CPython {_python(text)} on x86-64."
    lines = f"{made}\n{_DIGEST}{_digest(text, pinned)}\n{pinned}"
    source.with_suffix(".txt").write_text(lines, encoding="utf-8")


def _write_constraints(requirements: Sequence[str], names: Sequence[str]) -> Path:
    """Write what all locks pin but those of these names, if these requirements allow it."""
    pins: dict[str, str] = {}
    for lock in sorted(path for folder in FOLDERS for path in folder.glob("*.txt")):
        if lock.stem not in names:
            pins |= _pins(lock.read_text(encoding="utf-8"))
    for each in map(Requirement, requirements):
        if not each.specifier.contains(pins.get(canonicalize_name(each.name), ""), True):
            pins.pop(canonicalize_name(each.name), None)
    path = WHEELHOUSE / "constraints.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}=={pin}\n" for name, pin in pins.items() if not name.startswith(_MAY_DIFFER))
    path.write_text("".join(lines), encoding="utf-8")
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
    match sys.argv[1:]:
        case ["resolve" | "update" as how, *names]:
            resolve(names or _names(), how == "update")
        case ["fetch", *names]:
            for name in names or _fetched_by_default():
                fetch(name)
        case ["check"] if found := faults():
            raise SystemExit("\n".join(found))
        case ["check"]:
            print(f"{len(_names())} locks are fresh")
        case _:
            raise SystemExit(__doc__)


def _fetched_by_default() -> list[str]:
    texts = {name: _source(name).read_text(encoding="utf-8") for name in _names()}
    has_hashes = [name for name, text in texts.items() if not _directive(text, "hashes")]
    return [name for name in has_hashes if name not in FETCHED_BY_NAME_ONLY]


if __name__ == "__main__":
    main()
