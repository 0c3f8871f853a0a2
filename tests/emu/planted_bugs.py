"""Compiles a kernel in which a bug is planted with a driver that must notice it."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "emu"
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas")


class Builder:
    """Compiles the driver against a kernel; what does not change is compiled once.

    Args:
        directory: for what is built.
        driver: a file of tests/emu.
        kernel: files of csrc/cuda that bugs are planted in.
        sources: other files of csrc that the driver needs.
    """

    def __init__(
        self, directory: Path, driver: str, kernel: Sequence[str], sources: Sequence[str]
    ) -> None:
        self._compiler = os.environ.get("CXX", "c++")
        self._directory = directory
        self._driver = EMULATOR / driver
        self._kernel = kernel
        paths = (
            EMULATOR / "fiber.cpp",
            EMULATOR / "machine.cpp",
            *(ROOT / "csrc" / each for each in sources),
        )
        self._objects = [self._compile(path, directory) for path in paths]

    def build(self, name: str, old: str = "", new: str = "") -> Path:
        """Return a driver of the kernel in which `new` stands for `old`."""
        directory = self._directory / name.replace(" ", "_").replace("'", "")
        texts = {each: (ROOT / "csrc/cuda" / each).read_text() for each in self._kernel}
        assert any(old in text for text in texts.values()), "the mutant needs another text"
        for file_name, text in texts.items():
            path = directory / "cuda" / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new) if old else text)
        driver = self._compile(self._driver, directory, f"-I{directory}")
        program = directory / "driver"
        subprocess.run([self._compiler, driver, *self._objects, "-o", program], check=True)
        return program

    def _compile(self, source: Path, directory: Path, *options: str) -> Path:
        target = directory / f"{source.name}.o"
        includes = (EMULATOR / "include", EMULATOR, ROOT / "csrc")
        subprocess.run(
            [
                *(self._compiler, *FLAGS, *options, *(f"-I{include}" for include in includes)),
                *("-x", "c++", "-c", source, "-o", target),
            ],
            check=True,
        )
        return target


def run(program: Path) -> "subprocess.CompletedProcess[str]":
    """Run a driver: 0 if it saw nothing wrong."""
    return subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)


def assert_noticed(name: str, result: "subprocess.CompletedProcess[str]") -> None:
    """A driver has seen that something is wrong; where a bug's name says what, just that."""
    assert result.returncode != 0
    if "skips" in name:
        assert "deadlock" in result.stderr
    if "misaligned" in name:
        assert "misaligned" in result.stderr
