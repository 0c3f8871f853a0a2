"""What nvcc makes of the kernels of csrc for each architecture, compiled once for each text."""

import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.machine_code import disassembly
from tests.nvcc import find_tool

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
SOURCES = tuple(sorted(str(path.relative_to(CSRC)) for path in CSRC.rglob("*.cu")))
# Architectures, and the one that their PTX is made for: one of the same features, since PTX is most
# of the work. An H100 has instructions that no other device has, before or since.
COMPUTE = {80: "80", 86: "80", 89: "89", 90: "90a", 100: "100", 120: "100"}
# As cmake/cuda.cmake has them.
FLAGS = ("-std=c++17", "-O3", "-fmad=false")
# What was counted, by the hash of all that it was counted of.
CACHE = ROOT / "build" / "machine_code"
THREADS = 2
TENSOR_CORES = ("HMMA", "IMMA", "QMMA", "HGMMA")
WAIT_FOR_EARLIER = "ACQBULK"  # griddepcontrol.wait
LET_NEXT_START = "PREEXIT"  # griddepcontrol.launch_dependents
_GLOBAL_MEMORY = ("LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG")
_JUMPS = ("BRA", "BRX", "CALL", "EXIT", "JMP")


@dataclass(frozen=True)
class Kernel:
    """A kernel's code for an architecture.

    Attributes:
        name: as it is written, without namespaces, such as `norm_kernel<bf16>`.
        threads: the most of a block that it may be launched with; 0 if that is not bounded.
        shared_bytes: of a block, without what a launch asks for.
        stack_bytes: of a thread, in local memory.
        spilt_bytes: of a thread, stored there and loaded for want of registers.
        opcodes: how many instructions there are of each.
        at_once: instructions that touch global memory or jump before the kernel before is awaited,
            in all of the kernel where it is not.
        hot_loop: opcodes of the smallest loop that loads and multiplies on tensor cores; empty if
            there is none.
    """

    name: str
    threads: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spilt_bytes: int
    opcodes: dict[str, int]
    at_once: list[str]
    hot_loop: dict[str, int]


@cache
def version() -> str:
    """The release of the compiler, such as 13.0.88.

    Raises:
        LookupError: it or another tool is not installed.
    """
    for tool in ("nvcc", "ptxas", "nvdisasm"):
        if find_tool(tool) is None:
            raise LookupError(f"{tool} is not installed: pip install --group dev")
    output = _run(find_tool("nvcc"), "--version")
    found = re.search(r"V(\d+\.\d+\.\d+)", output)
    assert found is not None, output
    return found[1]


def compile_all(architectures: Iterable[int]) -> dict[tuple[str, int], list[Kernel]]:
    """Return the kernels of each source, by it and an architecture."""
    wanted = [(source, architecture) for source in SOURCES for architecture in architectures]
    computes = {(source, COMPUTE[architecture]) for source, architecture in wanted}
    # The longest first.
    by_size = sorted(computes, key=lambda each: (not each[0].startswith("cuda/attention"), each))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda each: _ptx(*each), by_size))
        return dict(zip(wanted, pool.map(lambda each: kernels(*each), wanted), strict=True))


@cache
def kernels(source: str, architecture: int) -> list[Kernel]:
    """Return the kernels of a source, a path under csrc."""
    path = _path(source, f"sm_{architecture}.json")
    if not path.exists():
        found = _count(_ptx(source, COMPUTE[architecture]), architecture)
        _write(path, json.dumps([asdict(each) for each in found], indent=1))
    return [Kernel(**each) for each in json.loads(path.read_text())]


def _ptx(source: str, compute: str) -> Path:
    path = _path(source, f"compute_{compute}.ptx")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        _run(
            *(find_tool("nvcc"), "-ptx", *FLAGS, f"-arch=compute_{compute}", "-I", CSRC),
            *("-o", temporary, CSRC / source),
        )
        temporary.replace(path)
    return path


def _count(ptx: Path, architecture: int) -> list[Kernel]:
    cubin = ptx.with_suffix(f".sm_{architecture}.cubin")
    own = "a" if COMPUTE[architecture].endswith("a") else ""
    options = ("-v", "--fmad", "false", f"-arch=sm_{architecture}{own}")
    log = _run(find_tool("ptxas"), *options, ptx, "-o", cubin)
    functions = disassembly.parse(_run(find_tool("nvdisasm"), "-c", cubin))
    cubin.unlink()
    return [*_kernels(log, ptx.read_text(), {each.name: each for each in functions})]


def _kernels(log: str, ptx: str, functions: dict[str, disassembly.Function]) -> Iterator[Kernel]:
    """What ptxas reports of each kernel, and what its instructions are."""
    reports = re.split(r"Compiling entry function '(\w+)' for '\w+'", log)[1:]
    mangled = reports[::2]
    threads = dict(re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)", ptx))
    for name, label, report in zip(mangled, _demangle(mangled), reports[1::2], strict=True):
        stack, stores, loads = re.findall(r"(\d+) bytes (?:stack|spill)", report)
        used = re.search(r"Used (\d+) registers", report)
        shared = re.search(r"(\d+) bytes smem", report)
        assert used is not None, report
        function = functions[name]
        try:
            loop = function.loop_with(TENSOR_CORES, ("LDGSTS", "LDG", "LDS"))
        except LookupError:
            loop = []
        yield Kernel(
            name=label,
            threads=int(threads.get(name, 0)),
            registers=int(used[1]),
            shared_bytes=int(shared[1]) if shared else 0,
            stack_bytes=int(stack),
            spilt_bytes=int(stores) + int(loads),
            opcodes=dict(Counter(each.opcode for each in function.instructions)),
            at_once=sorted({*_before_waiting(function)} & {*_GLOBAL_MEMORY, *_JUMPS}),
            hot_loop=dict(Counter(each.opcode for each in loop)),
        )


def _before_waiting(function: disassembly.Function) -> Iterator[str]:
    """The names of instructions that run beside the kernel before."""
    for each in function.instructions:
        if each.name == WAIT_FOR_EARLIER:
            return
        yield each.name


def _demangle(mangled: list[str]) -> list[str]:
    written = _run("c++filt", *mangled).splitlines() if mangled else []
    # `void quire::cuda::kernel<__half>(Params)`: what stands before the parameters, in short.
    short = [
        re.sub(r"\(anonymous namespace\)::|quire::(cuda::)?|void |__nv_", "", each)
        for each in written
    ]
    names = {"bfloat16": "bf16", "__half": "f16", "> >": ">>"}
    for long, brief in names.items():
        short = [each.replace(long, brief) for each in short]
    return [each.partition("(")[0] for each in short]


def _path(source: str, suffix: str) -> Path:
    """Where something made of a source lies; what was made of it before is removed."""
    name = source.replace("/", "-").removesuffix(".cu")
    ours = () if suffix.endswith("ptx") else (__file__, disassembly.__file__)
    path = CACHE / f"{name}.{_digest(source, *ours)}.{suffix}"
    for other in CACHE.glob(f"{name}.*.{suffix}"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


@cache
def _digest(source: str, *others: str) -> str:
    """The hash of a source, of what it includes of csrc, of the compiler, and of other files."""
    waiting, seen = [CSRC / source], set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        waiting += [CSRC / each for each in re.findall(r'#include "(.+?)"', path.read_text())]
    parts = [" ".join((version(), *FLAGS)).encode()]
    parts += [path.read_bytes() for path in (*sorted(seen), *map(Path, others))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def _run(*command: object) -> str:
    """What a command prints, to either stream.

    Raises:
        AssertionError: it failed.
    """
    result = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr
