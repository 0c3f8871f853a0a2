"""Compiles every kernel of csrc to PTX: python -m tests.ptx.compile ARCHITECTURE prints the folder.

A folder is kept under the hash of the sources, the options and the compiler, and found again.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.nvcc import find_nvcc

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
BUILD = ROOT / "build" / "ptx"
# As cmake/cuda.cmake compiles.
OPTIONS = ("-std=c++17", "-O3", "-lineinfo", "-fmad=false", "-ptx", "-I", str(CSRC))
# 90a has what an H100 alone has, and 90 what later cards have too.
ARCHITECTURES = ("80", "89", "90", "90a")
SUFFIXES = (".cu", ".cuh", ".h", ".def")
# Folders of other sources or options that are kept.
NUM_KEPT = 4


class CompileError(Exception):
    """nvcc is not installed, or refuses a source."""


def compile_text(source: Path, architecture: str, output: Path, *options: str) -> None:
    """Compile a file to PTX.

    Raises:
        CompileError: nvcc is not installed, or refuses it.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise CompileError("nvcc is not installed")
    command = [nvcc, *options, *OPTIONS, f"-arch=compute_{architecture}", "-o", output, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CompileError(f"{source}: {result.stderr}")


def compile_all(architecture: str) -> Path:
    """Compile all kernels for an architecture, unless that was done; return the folder.

    Raises:
        CompileError: nvcc is not installed, or refuses a source.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise CompileError("nvcc is not installed")
    version = subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version + repr((OPTIONS, architecture)).encode())
    for path in sorted(each for each in CSRC.rglob("*") if each.suffix in SUFFIXES):
        digest.update(str(path.relative_to(CSRC)).encode() + path.read_bytes())
    folder = BUILD / f"{architecture}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        folder.touch()
        return folder
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)

    def compile_one(source: Path) -> None:
        name = "_".join(source.relative_to(CSRC).with_suffix("").parts)
        compile_text(source, architecture, unfinished / f"{name}.ptx")

    # The longest first.
    sources = sorted(CSRC.rglob("*.cu"), key=lambda each: "mma" not in each.name)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_one, sources))
    unfinished.rename(folder)
    _remove_old()
    return folder


def _remove_old() -> None:
    folders = sorted(BUILD.iterdir(), key=lambda each: each.stat().st_mtime)
    for each in folders[:-NUM_KEPT]:
        shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architecture", choices=ARCHITECTURES, help="compute_...")
    try:
        print(compile_all(parser.parse_args().architecture))
    except CompileError as error:
        sys.exit(f"error: {error}")
