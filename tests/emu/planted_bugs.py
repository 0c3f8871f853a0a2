"""Compiles a kernel in which a bug is planted with a driver that must notice it."""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "emu"
# Objects by the hash of all that they are made of. What no run of this many days used is removed.
CACHE = ROOT / "build" / "planted_bugs"
KEPT_DAYS = 30
# The longest takes 20 s alone; others may want the cores as well.
RUN_S = 300
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas")


class Builder:
    """Compiles the driver against a kernel; what does not change is compiled once.

    Args:
        directory: for what is built.
        driver: a file of tests/emu.
        kernel: files of `folder` that bugs are planted in; the driver includes them by its name.
        sources: other files of csrc that the driver needs.
        folder: of the kernel.
    """

    def __init__(
        self,
        directory: Path,
        driver: str,
        kernel: Sequence[str],
        sources: Sequence[str],
        folder: Path = ROOT / "csrc/cuda",
    ) -> None:
        self._compiler = os.environ.get("CXX", "c++")
        command = [self._compiler, "--version"]
        self._version = subprocess.run(command, capture_output=True, check=True).stdout
        _remove_unused()
        self._directory = directory
        self._driver = EMULATOR / driver
        self._kernel = kernel
        self._folder = folder
        paths = (
            EMULATOR / "fiber.cpp",
            EMULATOR / "machine.cpp",
            EMULATOR / "runtime_memory.cpp",
            EMULATOR / "stream_capture.cpp",
            *(ROOT / "csrc" / each for each in sources),
        )
        self._objects = [self._compile(path, directory) for path in paths]

    def build(self, name: str, old: str = "", new: str = "") -> Path:
        """Return a driver of the kernel in which `new` stands for `old`."""
        directory = self._directory / name.replace(" ", "_").replace("'", "")
        texts = {each: (self._folder / each).read_text() for each in self._kernel}
        assert any(old in text for text in texts.values()), "the mutant needs another text"
        for file_name, text in texts.items():
            path = directory / self._folder.name / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new) if old else text)
        driver = self._compile(self._driver, directory, f"-I{directory}")
        program = directory / "driver"
        subprocess.run([self._compiler, driver, *self._objects, "-o", program], check=True)
        return program

    def _compile(self, source: Path, directory: Path, *options: str) -> Path:
        """Return the object of a source, compiled unless an earlier run compiled the same."""
        target = directory / f"{source.name}.o"
        includes = (EMULATOR / "include", EMULATOR, ROOT / "csrc")
        command = [self._compiler, *FLAGS, *options, *(f"-I{include}" for include in includes)]
        # Without line numbers and paths: the same text in another folder is the same object.
        text = subprocess.run(
            [*command, "-E", "-P", "-x", "c++", source], capture_output=True, check=True
        ).stdout
        parts = (self._version, repr((self._compiler, FLAGS)).encode(), text)
        cached = CACHE / f"{hashlib.sha256(b''.join(parts)).hexdigest()}.o"
        if cached.exists():
            cached.touch()
        else:
            subprocess.run([*command, "-x", "c++", "-c", source, "-o", target], check=True)
            CACHE.mkdir(parents=True, exist_ok=True)
            own = CACHE / f"{cached.name}.{os.getpid()}"
            shutil.copy(target, own)
            own.rename(cached)
        return cached


def _remove_unused() -> None:
    oldest = time.time() - KEPT_DAYS * 86_400
    for each in CACHE.glob("*"):
        if each.stat().st_mtime < oldest:
            each.unlink(missing_ok=True)


def run(program: Path) -> "subprocess.CompletedProcess[str]":
    """Run a driver: 0 if it saw nothing wrong."""
    return subprocess.run([program], capture_output=True, text=True, timeout=RUN_S, check=False)


class PlantedBugs:
    """Tests of a kernel and of bugs planted in it, for a class of tests to inherit.

    Attributes:
        driver: a file of tests/emu, which exits with 0 if it sees nothing wrong.
        kernel: files of `folder` that bugs are planted in.
        sources: other files of csrc that the driver needs.
        folder: of the kernel.
        mutants: by what is wrong: the text of the kernel that is replaced, and by what.
    """

    driver: str
    kernel: Sequence[str]
    sources: Sequence[str] = ("core/check.cpp",)
    folder = ROOT / "csrc/cuda"
    mutants: Mapping[str, tuple[str, str]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Have a test for each bug."""
        if "bug" in metafunc.fixturenames:
            metafunc.parametrize("bug", self.mutants)

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls, tmp_path_factory: pytest.TempPathFactory) -> Builder:
        """What compiles the driver with a bug."""
        directory = tmp_path_factory.mktemp("planted_bugs")
        return Builder(directory, cls.driver, cls.kernel, cls.sources, cls.folder)

    def test_the_kernel_itself_passes(self, builder: Builder) -> None:
        result = run(builder.build("none"))
        assert result.returncode == 0, result.stderr

    def test_a_planted_bug_is_noticed(self, builder: Builder, bug: str) -> None:
        result = run(builder.build(bug, *self.mutants[bug]))
        assert result.returncode != 0
        # Where its name states what happens, just that.
        if "skips" in bug:
            assert "deadlock" in result.stderr
        if "misaligned" in bug:
            assert "misaligned" in result.stderr
