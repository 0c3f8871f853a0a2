"""All that needs a GPU, in one command and without a network: `make gpu-check`.

Builds the kernels for the GPU at hand, looks whether a token's bits are its own, runs every test of
the kernels and of the worker, some under the sanitizer of CUDA, and the benchmarks, each figure
beside what is expected of it. Steps that measure no time run side by side. With --smoke one call of
each kind, whether a token's bits depend on its company, and whether steps can be captured. What
came of a step goes at once to bench/results as JSON, named by device and commit. Exits with 1 if
there is no GPU or a step failed.

Needs torch, pybind11, pytest, CMake and ninja; for the worker also
transformers, grpcio-tools and structlog. With pytest-xdist tests run in several processes.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.recorded_steps import ROOT, Check

RESULTS = ROOT / "bench" / "results"
BUILD = ROOT / "build" / "gpu"
FLASHINFER = BUILD / "flashinfer"
FLASHINFER_WHEELS = ROOT / "build/wheelhouse/flashinfer"
# Without a plugin that a machine may have, which warns of tests in several processes.
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:benchmark")
PYTEST = (sys.executable, "-m", "pytest", "-q", "--tb=short", *WITHOUT)
KERNELS = "tests/kernels"
# A call of each kind: what does not run at all is known after a minute.
FIRST_TESTS = tuple(
    f"{KERNELS}/test_{name}.py"
    for name in ("cache", "layers", "attention", "linear", "logits", "sampling")
)
# The same token in another batch, chunk or launch.
BITS_TESTS = tuple(
    f"{KERNELS}/test_{name}.py"
    for name in ("attention_prompts", "attention_invariance", "attention_latent")
)
WORKER_TESTS = tuple(
    f"tests/emu/test_gpu_{name}.py"
    for name in ("worker", "mixed_graphs", "engine", "quantization", "latent")
)
# Ranks are threads that wait for each other on one GPU: no kernel may lie behind another rank's in
# a queue of the device, wait for one to be loaded, or find its place taken by one that came early.
RANKS_TEST = f"{KERNELS}/test_peer_sum.py"
RANKS_ENV = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "EAGER",
    "QUIRE_LAUNCH_OVERLAP": "0",
}
# Clusters of processes, through kills, swaps and moves between cells.
CLUSTER_TEST = "tests/emu/test_gpu_cluster.py"
# Small shapes: under the sanitizer a launch takes a thousand times as long.
SANITIZED_TESTS = (
    f"{KERNELS}/test_bounds.py",
    "-k",
    "gpu and not activations",
)
WORKER_NEEDS = ("transformers", "grpc_tools", "structlog")
# What pyproject.toml asks for: older ones compute some models otherwise.
LEAST_TRANSFORMERS = (5, 23)
# All of it: what was found is written before a limit of ten minutes ends the command.
TOTAL_S, SMOKE_S = 570.0, 90.0
# Of each set of tests that runs in parallel.
PROCESSES = min(8, (os.cpu_count() or 1) // 2)


def describe() -> dict[str, Any]:
    """Return the device, its driver and what is checked on it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "gpus": torch.cuda.device_count(),
        "capability": f"{properties.major}{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "commit": _output("git", "rev-parse", "--short", "HEAD") or "unknown",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def pytest_in_parallel(processes: int) -> tuple[str, ...]:
    """Return the command that runs tests, in several processes where pytest-xdist is installed."""
    if processes < 2 or importlib.util.find_spec("xdist") is None:
        return PYTEST
    return (*PYTEST, "-n", str(processes))


def python_path(*more: Path) -> str:
    """Return PYTHONPATH with the root, and what it had before."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *map(str, more), *([before] if before else [])])


def environment(kernels: Path) -> dict[str, str]:
    """Return the variables to use built kernels with."""
    return {"QUIRE_KERNELS": str(kernels), "PYTHONPATH": python_path()}


def architecture(capability: str) -> str:
    """Return the architecture to compile for: with what only this capability has, if we use it."""
    return f"{capability}a" if capability == "90" else capability


def build(check: Check) -> dict[str, str] | None:
    """Build the kernels; return the environment to use them in, or None if that failed."""
    built = check.run(
        "build",
        "csrc/dev_build.sh",
        BUILD.relative_to(ROOT),
        "-DQUIRE_KERNELS_ONLY=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture(check.about['capability'])}-real",
        env={"PYTHON": sys.executable, "QUIRE_CUDA": "1"},
    )
    if not built:
        return None
    (kernels,) = (BUILD / "csrc").glob("_C*.so")
    return environment(kernels)


def check_first(check: Check, env: dict[str, str]) -> None:
    """Look at what is soon known: a call of each kind, and whether bits are a token's own."""
    pytest = pytest_in_parallel(PROCESSES)
    check.run("first", *pytest, *FIRST_TESTS, "-k", "gpu", "--maxfail=5", env=env, timeout_s=60)
    check_bits(check, env)
    if make_stubs(check):
        worker = ("tests/emu/test_gpu_worker.py", "-k", "graphs")
        check.run("graphs", *PYTEST, *worker, env=env, timeout_s=60)


def check_bits(check: Check, env: dict[str, str]) -> None:
    """Look whether bits are a token's own, and if not, which of two causes it is."""
    bits = (*pytest_in_parallel(PROCESSES), *BITS_TESTS, "-k", "gpu", "--maxfail=5")
    if not check.run("bits", *bits, env=env, timeout_s=60):
        for name, switch in (
            ("bits-apart", "QUIRE_LAUNCH_OVERLAP"),
            ("bits-single-warps", "QUIRE_PROMPT_WARPGROUPS"),
        ):
            check.run(name, *bits, env={**env, switch: "0"}, timeout_s=60)


def make_stubs(check: Check) -> bool:
    """Generate the protobuf stubs, which scheduler and worker need; return whether that worked."""
    missing = [name for name in WORKER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        check.not_run("protos", f"this Python has no {', '.join(missing)}")
        return False
    protos: list[str | Path] = [
        path.relative_to(ROOT) for path in (ROOT / "protos/quire").glob("*/*.proto")
    ]
    protoc = (sys.executable, "-m", "grpc_tools.protoc", "--proto_path=protos")
    return check.run("protos", *protoc, "--python_out=.", "--grpc_python_out=.", *protos)


def check_all(check: Check, env: dict[str, str], without: list[str]) -> None:
    """Run every test, some under the sanitizer, and the benchmarks."""
    check_bits(check, env)
    has_stubs = make_stubs(check)
    everything = {**env, "QUIRE_TEST_DEPTH": "all"}
    together: list[Callable[[], object]] = []

    def test(name: str, *arguments: str) -> None:
        command = (*pytest_in_parallel(PROCESSES), *arguments)
        together.append(lambda: check.run(name, *command, env=everything))

    test("tests", KERNELS, f"--ignore={RANKS_TEST}", "-k", "gpu or seed_attention")
    if has_stubs:
        test("worker", *WORKER_TESTS, *without_old_reference(check))
    if "sanitizer" not in without:
        together += [partial(sanitize, check, env, tool) for tool in ("memcheck", "racecheck")]
    if "flashinfer" not in without:
        together.append(lambda: prepare_flashinfer(check, env))
    check.run_together(*together)
    # Where a rank waits for ever, its stack is printed.
    ranks = (*PYTEST, RANKS_TEST, "-k", "gpu", "-o", "faulthandler_timeout=15")
    check.run("ranks", *ranks, env=everything | RANKS_ENV, timeout_s=40)
    if has_stubs:
        check.run("cluster", *PYTEST, CLUSTER_TEST, env=env, timeout_s=120)
    # FlashInfer's column is missing where it is left out or does not compile.
    compared = env | flashinfer_environment() if has_flashinfer(check) else env
    left_out = ("--without-flex",) if "flex" in without else ()
    bench(check, "bench", "bench.kernels_gpu", compared, *left_out)
    bench(check, "bench-kinds", "bench.gpu_kinds", env)
    if has_stubs:
        bench(check, "start", "bench.gpu_start", env)
        bench_sums(check, env)
        bench(check, "bench-mixed", "bench.gpu_mixed", env)
        bench(check, "bench-gpu", "bench.gpu", env)


def without_old_reference(check: Check) -> tuple[str, ...]:
    """Return what leaves out the test against a transformers that is too old, and record that."""
    version = importlib.metadata.version("transformers")
    if tuple(int(part) for part in version.split(".")[:2]) >= LEAST_TRANSFORMERS:
        return ()
    least = ".".join(map(str, LEAST_TRANSFORMERS))
    check.about["left_out"] = (
        f"Gemma 2 against transformers, which must be {least} or newer, got {version}"
    )
    print(f"left out: {check.about['left_out']}")
    return ("-k", "not (equal_transformers and gemma2)")


def sanitize(check: Check, env: dict[str, str], tool: str) -> None:
    """Run small calls under a tool of CUDA's sanitizer."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        check.not_run(tool, "there is no compute-sanitizer; --without sanitizer leaves it out")
        return
    command = (sanitizer, "--tool", tool, "--error-exitcode", "9", *PYTEST, *SANITIZED_TESTS)
    check.run(tool, *command, env=env, timeout_s=150)


def flashinfer_environment() -> dict[str, str]:
    """Return the variables to use FlashInfer with."""
    return {
        "PYTHONPATH": python_path(FLASHINFER),
        "FLASHINFER_WORKSPACE_BASE": str(BUILD),
    }


def has_flashinfer(check: Check) -> bool:
    """Return whether FlashInfer can be compared with."""
    return bool(check.steps.get("flashinfer-compile", {}).get("ok"))


def prepare_flashinfer(check: Check, env: dict[str, str]) -> None:
    """Install FlashInfer and compile its kernels."""
    if not any(FLASHINFER_WHEELS.glob("*.whl")):
        check.not_run(
            "flashinfer",
            "build/wheelhouse/flashinfer has no wheels: `python -m tools.lock fetch flashinfer` "
            "brings them where there is a network, --without flashinfer leaves it out",
        )
        return
    installed = check.run(
        "flashinfer",
        *(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", FLASHINFER),
        *("--no-index", "--find-links", FLASHINFER_WHEELS, "--no-deps", "--require-hashes"),
        *("-r", "bench/requirements/flashinfer.txt"),
        timeout_s=60,
    )
    if installed:
        compile_it = (sys.executable, "-m", "bench.flashinfer_decode")
        env = env | flashinfer_environment()
        check.run("flashinfer-compile", *compile_it, env=env, timeout_s=150)


def bench_sums(check: Check, env: dict[str, str]) -> None:
    """Time sums over two GPUs, in memory of peers and by NCCL, where there are two."""
    num_gpus = check.about["gpus"]
    if num_gpus < 2:
        check.skip("bench-sums", f"sums over ranks need two GPUs, got {num_gpus}")
    else:
        bench(check, "bench-sums", "bench.gpu_sums", env, "--size", "2")


def bench(check: Check, name: str, module: str, env: dict[str, str], *options: str) -> None:
    """Run a benchmark that writes its figures as JSON."""
    figures = BUILD / f"{name}.json"
    figures.parent.mkdir(parents=True, exist_ok=True)
    figures.unlink(missing_ok=True)
    command: tuple[str | Path, ...] = (sys.executable, "-m", module, *options, "--json", figures)
    check.run(name, *command, env=env, timeout_s=170, figures=figures)


def run_all(check: Check, smoke: bool, without: list[str], kernels: Path | None = None) -> int:
    """Run the steps in order; return 0 if all succeeded.

    Args:
        check: that has not begun.
        smoke: whether to stop behind what is soon known.
        without: names of what is left out.
        kernels: a module that was built before, for this Python; else one is built.
    """
    env = environment(kernels) if kernels else build(check)
    if env is not None:
        if smoke:
            check.begin_again()
            check_first(check, env)
        else:
            check_all(check, env, without)
    print(check.path)
    return 0 if all(found["ok"] for found in check.steps.values()) else 1


def main() -> int:
    """Run every step and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="only what is known a minute and a half after a build"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=["sanitizer", "flashinfer", "flex"],
        help="leave this out",
    )
    parser.add_argument(
        "--limit-s", type=float, default=TOTAL_S, help="for all steps (default: %(default)s)"
    )
    parser.add_argument("--kernels", type=Path, help="worker_svc._C as built before, for this GPU")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print(f"gpu-check: {sys.executable} has no torch", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("gpu-check: there is no GPU here", file=sys.stderr)
        return 1
    about = describe()
    name = re.sub(r"[^a-z0-9]+", "-", f"{about['device']}-{about['commit']}".lower())
    path = RESULTS / f"{name}{'-smoke' if arguments.smoke else ''}.json"
    check = Check(about, path, SMOKE_S if arguments.smoke else arguments.limit_s)
    kernels = arguments.kernels and arguments.kernels.resolve()
    if kernels is not None:
        if not kernels.is_file():
            parser.error(f"--kernels: must be a file, got {kernels}")
        about["kernels_sha256"] = hashlib.sha256(kernels.read_bytes()).hexdigest()
    return run_all(check, arguments.smoke, arguments.without, kernels)


if __name__ == "__main__":
    sys.exit(main())
