"""All that needs a GPU, in one command and without a network: `make gpu-check`.

Builds the kernels for the GPU at hand, runs their tests and the worker's on it, the benchmarks, and
some tests under the sanitizer of CUDA. What came of it goes to bench/results as JSON, named by
device and commit. Exits with 1 if there is no GPU or a step failed. Needs torch, pybind11, pytest,
CMake and ninja; for the worker also transformers, grpcio-tools and structlog.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BUILD = ROOT / "build" / "gpu"
# Small shapes: under the sanitizer a launch takes a thousand times as long.
SANITIZED_TESTS = (
    "tests/kernels/test_bounds.py",
    "-k",
    "gpu and not activations and (not paged_attention or 64)",
)
SANITIZER_S = 60
BENCH_S = 170
WORKER_NEEDS = ("transformers", "grpc_tools", "structlog")
# All of it: what was found is written before a limit of ten minutes ends the command.
TOTAL_S = 570
BEGAN = time.monotonic()


def run(
    *command: str | Path, env: dict[str, str] | None = None, timeout_s: float = 240
) -> dict[str, Any]:
    """Run a command from the root, within the time that is left.

    Returns:
        Whether it succeeded, the end of its output, and its time.
    """
    print("+", *command, flush=True)
    timeout_s = min(timeout_s, max(1.0, TOTAL_S - (time.monotonic() - BEGAN)))
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        # With all it has started: what goes on would disturb what is measured next.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status, output = 124, f"{output}\nended after {timeout_s:.0f} s"
    tail = output[-8000:]
    print(tail, flush=True)
    return {"ok": status == 0, "s": round(time.perf_counter() - began, 1), "output": tail}


def describe() -> dict[str, Any]:
    """The device, its driver and what is checked on it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "device": properties.name,
        "capability": f"{properties.major}{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": driver.stdout.strip(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def check_kernels(capability: str, steps: dict[str, Any]) -> None:
    """Build, test, sanitize and measure; a build that fails ends it.

    Mutates: steps, by what came of each.
    """
    steps["build"] = run(
        "csrc/dev_build.sh",
        BUILD.relative_to(ROOT),
        "-DQUIRE_KERNELS_ONLY=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={capability}-real",
        env={"PYTHON": sys.executable, "QUIRE_CUDA": "1"},
    )
    if not steps["build"]["ok"]:
        return
    (kernels,) = (BUILD / "csrc").glob("_C*.so")
    env = {
        "QUIRE_KERNELS": str(kernels),
        "PYTHONPATH": str(ROOT),
        "QUIRE_TEST_DEPTH": "all",
    }
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    steps["tests"] = run(*pytest, "tests/kernels", "-k", "gpu or seed_attention", env=env)
    check_worker(pytest, env, steps)
    steps["bench"] = bench("bench.kernels_gpu", env)
    if (sanitizer := shutil.which("compute-sanitizer")) is not None:
        for tool in ("memcheck", "racecheck"):
            steps[tool] = run(
                *(sanitizer, "--tool", tool, "--error-exitcode", "9"),
                *(*pytest, *SANITIZED_TESTS),
                env=env,
                timeout_s=SANITIZER_S,
            )


def check_worker(pytest: tuple[str, ...], env: dict[str, str], steps: dict[str, Any]) -> None:
    """Test and measure scheduler and worker; they need more than the kernels do.

    Mutates: steps, by what came of each.
    """
    missing = [name for name in WORKER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"not run: this Python has no {', '.join(missing)}"
        steps["worker"] = {"ok": False, "s": 0.0, "output": reason}
        print(reason)
        return
    protos: list[str | Path] = [
        path.relative_to(ROOT) for path in (ROOT / "protos/quire/v1").glob("*.proto")
    ]
    protoc = (sys.executable, "-m", "grpc_tools.protoc", "--proto_path=protos")
    steps["protos"] = run(*protoc, "--python_out=.", "--grpc_python_out=.", *protos)
    files = [f"tests/emu/test_gpu_{name}.py" for name in ("worker", "engine", "quantization")]
    steps["worker"] = run(*pytest, *files, env=env, timeout_s=120)
    steps["bench-gpu"] = bench("bench.gpu", env)


def bench(module: str, env: dict[str, str]) -> dict[str, Any]:
    """Run a benchmark that writes its figures as JSON."""
    figures = BUILD / f"{module}.json"
    found = run(sys.executable, "-m", module, "--json", figures, env=env, timeout_s=BENCH_S)
    if figures.exists():
        found["figures"] = json.loads(figures.read_text())
    return found


def main() -> int:
    """Run every step and write the results."""
    try:
        import torch
    except ImportError:
        print(f"gpu-check: {sys.executable} has no torch", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("gpu-check: there is no GPU here", file=sys.stderr)
        return 1
    about = describe()
    steps: dict[str, Any] = {}
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", f"{about['device']}-{about['commit']}".lower())
    path = RESULTS / f"{name}.json"
    try:
        check_kernels(about["capability"], steps)
    finally:
        path.write_text(json.dumps({**about, "steps": steps}, indent=1) + "\n")
    for step, found in steps.items():
        print(f"{step:>10}  {'ok' if found['ok'] else 'FAILED'}  {found['s']} s")
    print(path.relative_to(ROOT))
    return 0 if all(found["ok"] for found in steps.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
