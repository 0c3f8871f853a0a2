"""Which files of the repository a lane depends on, found in what it opened, and their digests."""

import hashlib
import re
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from tools.lanes.lane import ROOT
from tools.lanes.machine import SITE_PACKAGES, Distributions
from tools.lanes.trace import Trace

# Results are written after the runs that they are of, and are no lane's input.
RESULTS = ".ci/results"
# Names of inputs that are no file: names of all files, and of what a folder holds.
ALL_NAMES, NAMES_IN = "names of all files", "names in "
# What `make setup` generates: read in place of its sources. Every other file below build/ is
# made by a lane.
GENERATED = {
    "quire/v1/": ("protos/", "CMakeLists.txt", "cmake/"),
    "quire/facades/": ("protos/", "CMakeLists.txt", "cmake/"),
    "worker_svc/_C.pyi": ("csrc/", "CMakeLists.txt", "cmake/"),
    f"{SITE_PACKAGES}/worker_svc/_C.": ("csrc/", "CMakeLists.txt", "cmake/"),
}
GENERATORS = ("grpcio-tools", "mypy-protobuf", "pybind11", "cmake", "ninja", "scikit-build-core")
OF_SETUP = re.compile(r"build/(cp3|setup|lanes/|apt\.log|dockerd\.log)")
COMPILED = re.compile(r"__pycache__/(\w+)\.[^/]+\.pyc(\.\d+)?$")


class Tree:
    """The files of the repository as they are now: those git has, or would add."""

    def __init__(self) -> None:
        command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        names = {name.decode() for name in listed.split(b"\0") if name}
        self.digests = {
            name: _file_digest(ROOT / name)
            for name in sorted(names)
            if not name.startswith(f"{RESULTS}/") and (ROOT / name).is_file()
        }
        self._in_folder: dict[str, list[str]] = {}
        for name in self.digests:
            for folder in PurePath(name).parents:
                self._in_folder.setdefault(str(folder), []).append(name)

    def below(self, folder: str) -> list[str]:
        """Return the files of a folder and of the folders in it."""
        return self._in_folder.get(folder, [])

    @property
    def folders(self) -> Collection[str]:
        """Return every folder that has a file, `.` among them."""
        return self._in_folder.keys()

    def digest(self, name: str) -> str:
        """Return a digest of what stands behind an input, `absent` if nothing does.

        Args:
            name: a file; a folder, with a slash at its end, for all that is in it; `ALL_NAMES`; or
                `NAMES_IN` and a folder.
        """
        if name == ALL_NAMES:
            return _digest(self.digests)
        if name.startswith(NAMES_IN):
            folder = name.removeprefix(NAMES_IN)
            depth = 0 if folder == "." else len(PurePath(folder).parts)
            return _digest(sorted({PurePath(each).parts[depth] for each in self.below(folder)}))
        if name.endswith("/"):
            files = self.below(name.rstrip("/"))
            return _digest(f"{each} {self.digests[each]}" for each in files) if files else "absent"
        return self.digests.get(name, "absent")

    def folded(self, files: Collection[str]) -> set[str]:
        """Return names of files, with folders in the place of those of which all are there."""
        left, whole = set(files), set[str]()
        for folder in sorted(self.folders, key=len):
            below = self.below(folder)
            if folder != "." and len(below) > 1 and left.issuperset(below):
                whole.add(f"{folder}/")
                left.difference_update(below)
        return left | whole


@dataclass(slots=True)
class Inputs:
    """What a lane depends on.

    Attributes:
        files: of the repository, and what else `Tree.digest` takes.
        listed: folders whose names it read.
        distributions: names of packages of Python.
        built: folders in build/ of which it opened files: it depends on what wrote them.
    """

    files: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    distributions: set[str] = field(default_factory=set)
    built: set[str] = field(default_factory=set)

    def add(self, other: "Inputs") -> None:
        """Add what another lane depends on."""
        self.files |= other.files
        self.listed |= other.listed
        self.distributions |= other.distributions
        self.built |= other.built

    def names(self, tree: Tree) -> list[str]:
        """Return the names of which `Tree.digest` gives the digests, as few as say the same."""
        whole = tree.folded(self.files)
        # Of a folder that counts as a whole the names count anyway.
        folders = {each.rstrip("/") for each in whole if each.endswith("/")}
        listed = (
            name
            for name in self.listed
            if name in tree.folders
            and folders.isdisjoint(map(str, (name, *PurePath(name).parents)))
        )
        return sorted(whole | {f"{NAMES_IN}{name}" for name in listed})


def inputs_of(trace: Trace, tree: Tree, installed: Distributions) -> Inputs:
    """Return what a lane depends on, but for what the lanes depend on whose files it read.

    Args:
        trace: of the lane.
        tree: of the repository.
        installed: packages.
    """
    inputs = Inputs(listed=trace.listed, built=built(trace.opened))
    for opened in trace.opened:
        name = COMPILED.sub(r"\1.py", opened)
        if name in tree.digests:
            inputs.files.add(name)
        elif name == ".git/index":  # git ls-files
            inputs.files.add(ALL_NAMES)
        elif sources := _generated_from(name):
            inputs.files.update(sources)
            inputs.distributions.update(set(GENERATORS) & installed.versions.keys())
        elif name.startswith(f"{SITE_PACKAGES}/"):
            # pytest reads which entry points there are of every package: it loads few of them.
            is_read = not name.endswith(".dist-info/entry_points.txt")
            package = installed.of_file(name.removeprefix(f"{SITE_PACKAGES}/")) if is_read else None
            inputs.distributions |= {package} if package else set()
    inputs.distributions.discard("quire-serve")
    return inputs


def built(names: Iterable[str]) -> set[str]:
    """Return the folders in build/ of some files, but for those of `make setup` and of logs.

    Files that are renamed are reported by either name; the folder stays.
    """
    return {
        "/".join(name.split("/", 2)[:2])
        for name in names
        if name.startswith("build/") and not OF_SETUP.match(name)
    }


def _generated_from(name: str) -> Iterable[str]:
    for start, sources in GENERATED.items():
        if name.startswith(start):
            return sources
    return ()


def _file_digest(path: Path) -> str:
    # Whether it may be executed counts, who owns it does not.
    executable = path.stat().st_mode & 0o100
    return _digest([str(executable)], path.read_bytes())


def _digest(lines: Iterable[str], data: bytes = b"") -> str:
    text = "\n".join(lines).encode()
    return hashlib.sha256(text + b"\0" + data).hexdigest()[:16]
