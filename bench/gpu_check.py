"""All that needs a GPU, in one command and without a network: `make gpu-check`.

What is cheapest to know comes first: builds the kernels for the GPU at hand, runs one call of each
kind, looks whether a token's bits depend on its company and whether steps can be captured; then
every test of the kernels and of the worker, some under the sanitizer of CUDA, and the benchmarks,
each figure beside what docs/gpu.md predicts. What came of a step goes at once to bench/results as
JSON, named by device and commit. Exits with 1 if there is no GPU or a step failed. Needs torch,
pybind11, pytest, CMake and ninja; for the worker also transformers, grpcio-tools and structlog.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BUILD = ROOT / "build" / "gpu"
FLASHINFER_WHEELS = ROOT / "build/wheelhouse/flashinfer"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
KERNELS = "tests/kernels"
# A call of each kind: what does not run at all is known after a minute.
FIRST_TESTS = tuple(
    f"{KERNELS}/test_{name}.py"
    for name in ("cache", "layers", "attention", "linear", "logits", "sampling")
)
# The same token in another batch, chunk or launch.
BITS_TESTS = tuple(
    f"{KERNELS}/test_{name}.py" for name in ("attention_prompts", "attention_invariance")
)
WORKER_TESTS = tuple(
    f"tests/emu/test_gpu_{name}.py" for name in ("worker", "engine", "quantization")
)
# Small shapes: under the sanitizer a launch takes a thousand times as long.
SANITIZED_TESTS = (
    f"{KERNELS}/test_bounds.py",
    "-k",
    "gpu and not activations and (not paged_attention or 64)",
)
WORKER_NEEDS = ("transformers", "grpc_tools", "structlog")
# All of it: what was found is written before a limit of ten minutes ends the command.
TOTAL_S, SMOKE_S = 570.0, 90.0

Result = dict[str, Any]


@dataclass
class Check:
    """The steps of a run, each recorded as soon as it has ended.

    Attributes:
        about: of the device, and of what is checked on it.
        path: of the results.
        total_s: for all steps.
        steps: what came of each so far.
    """

    about: dict[str, Any]
    path: Path
    total_s: float
    steps: dict[str, Result] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def record(self, name: str, result: Result) -> bool:
        """Write what came of a step; return whether it succeeded."""
        self.steps[name] = result
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps({**self.about, "steps": self.steps}, indent=1) + "\n")
        print(f"{name:>10}  {'ok' if result['ok'] else 'FAILED'}  {result['s']} s", flush=True)
        return bool(result["ok"])

    def not_run(self, name: str, reason: str) -> None:
        """Record a step that cannot be run as failed."""
        self.record(name, {"ok": False, "s": 0.0, "output": f"not run: {reason}"})
        print(f"not run: {reason}")

    def run(
        self,
        name: str,
        *command: str | Path,
        env: dict[str, str] | None = None,
        timeout_s: float = 240,
        figures: Path | None = None,
    ) -> bool:
        """Run a command from the root, within the time that is left; return whether it succeeded.

        Args:
            name: of the step.
            command: program and arguments.
            env: variables beside those there are.
            timeout_s: for it.
            figures: JSON that it writes, compared with what was predicted.
        """
        print("+", *command, flush=True)
        timeout_s = min(timeout_s, max(1.0, self.total_s - (time.monotonic() - self.began)))
        result = _run(command, env or {}, timeout_s)
        if figures is not None and figures.exists():
            result["figures"] = json.loads(figures.read_text())
            result["predictions"] = self._compare(name, result["figures"])
        return self.record(name, result)

    def begin_again(self) -> None:
        """Count the time from now on."""
        self.began = time.monotonic()

    def _compare(self, name: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
        from bench.gpu_predictions import compared

        found = list(compared(name, self.about["device"], figures))
        for each in found:
            low, high = each["predicted"]
            verdict = "as predicted" if each["as_predicted"] else "NOT AS PREDICTED"
            print(f"{each['name']}: {each['measured']}, predicted {low} to {high}: {verdict}")
        return found


def _run(command: tuple[str | Path, ...], env: dict[str, str], timeout_s: float) -> Result:
    """Return whether a command succeeded, the end of its output, and its time."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **env},
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
    """Return the device, its driver and what is checked on it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
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


def build(check: Check) -> dict[str, str] | None:
    """Build the kernels; return the environment to use them in, or None if that failed."""
    built = check.run(
        "build",
        "csrc/dev_build.sh",
        BUILD.relative_to(ROOT),
        "-DQUIRE_KERNELS_ONLY=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={check.about['capability']}-real",
        env={"PYTHON": sys.executable, "QUIRE_CUDA": "1"},
    )
    if not built:
        return None
    (kernels,) = (BUILD / "csrc").glob("_C*.so")
    return {"QUIRE_KERNELS": str(kernels), "PYTHONPATH": str(ROOT)}


def check_first(check: Check, env: dict[str, str]) -> None:
    """Look at what is soon known: a call of each kind, and whether bits are a token's own."""
    check.run("first", *PYTEST, *FIRST_TESTS, "-k", "gpu", "--maxfail=5", env=env, timeout_s=60)
    bits = (*PYTEST, *BITS_TESTS, "-k", "gpu", "--maxfail=5")
    if not check.run("bits", *bits, env=env, timeout_s=60):
        # Whether it is kernels that overlap.
        apart = {**env, "QUIRE_LAUNCH_OVERLAP": "0"}
        check.run("bits-apart", *bits, env=apart, timeout_s=60)
    if make_stubs(check):
        worker = ("tests/emu/test_gpu_worker.py", "-k", "graphs")
        check.run("graphs", *PYTEST, *worker, env=env, timeout_s=60)


def make_stubs(check: Check) -> bool:
    """Generate the protobuf stubs, which scheduler and worker need; return whether that worked."""
    missing = [name for name in WORKER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        check.not_run("protos", f"this Python has no {', '.join(missing)}")
        return False
    protos: list[str | Path] = [
        path.relative_to(ROOT) for path in (ROOT / "protos/quire/v1").glob("*.proto")
    ]
    protoc = (sys.executable, "-m", "grpc_tools.protoc", "--proto_path=protos")
    return check.run("protos", *protoc, "--python_out=.", "--grpc_python_out=.", *protos)


def check_all(check: Check, env: dict[str, str], without: list[str]) -> None:
    """Run every test, some under the sanitizer, and the benchmarks."""
    has_stubs = check.steps["protos"]["ok"]
    everything = {**env, "QUIRE_TEST_DEPTH": "all"}
    check.run("tests", *PYTEST, KERNELS, "-k", "gpu or seed_attention", env=everything)
    if has_stubs:
        check.run("worker", *PYTEST, *WORKER_TESTS, env=everything, timeout_s=120)
    if "sanitizer" not in without:
        sanitize(check, env)
    bench(check, "bench", "bench.kernels_gpu", env)
    if has_stubs:
        bench(check, "bench-gpu", "bench.gpu", env)
    if "flashinfer" not in without:
        compare_with_flashinfer(check, env)


def sanitize(check: Check, env: dict[str, str]) -> None:
    """Run small calls under the tools of CUDA's sanitizer."""
    sanitizer = shutil.which("compute-sanitizer")
    for tool in ("memcheck", "racecheck"):
        if sanitizer is None:
            check.not_run(tool, "there is no compute-sanitizer; --without sanitizer leaves it out")
            continue
        command = (sanitizer, "--tool", tool, "--error-exitcode", "9", *PYTEST, *SANITIZED_TESTS)
        check.run(tool, *command, env=env, timeout_s=60)


def compare_with_flashinfer(check: Check, env: dict[str, str]) -> None:
    """Install FlashInfer, compile its kernels, and measure decode attention beside it."""
    if not any(FLASHINFER_WHEELS.glob("*.whl")):
        check.not_run(
            "flashinfer",
            "build/wheelhouse/flashinfer has no wheels: `tools/lock.py fetch flashinfer` brings "
            "them where there is a network, --without flashinfer leaves it out",
        )
        return
    target = BUILD / "flashinfer"
    installed = check.run(
        "flashinfer",
        *(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", target),
        *("--no-index", "--find-links", FLASHINFER_WHEELS, "--no-deps", "--require-hashes"),
        *("-r", "bench/requirements/flashinfer.txt"),
        timeout_s=60,
    )
    env = env | {"PYTHONPATH": f"{ROOT}:{target}", "FLASHINFER_WORKSPACE_BASE": str(BUILD)}
    compile_it = (sys.executable, "-m", "bench.flashinfer_decode")
    if installed and check.run("flashinfer-compile", *compile_it, env=env, timeout_s=150):
        bench(check, "bench-flashinfer", "bench.kernels_gpu", env, "--only", "decode")


def bench(check: Check, name: str, module: str, env: dict[str, str], *options: str) -> None:
    """Run a benchmark that writes its figures as JSON."""
    figures = BUILD / f"{name}.json"
    figures.unlink(missing_ok=True)
    command: tuple[str | Path, ...] = (sys.executable, "-m", module, *options, "--json", figures)
    check.run(name, *command, env=env, timeout_s=170, figures=figures)


def run_all(check: Check, smoke: bool, without: list[str]) -> int:
    """Run the steps in order; return 0 if all succeeded."""
    env = build(check)
    if env is not None:
        if smoke:
            check.begin_again()
        check_first(check, env)
        if not smoke:
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
        choices=["sanitizer", "flashinfer"],
        help="leave this out",
    )
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
    check = Check(about, path, SMOKE_S if arguments.smoke else TOTAL_S)
    return run_all(check, arguments.smoke, arguments.without)


if __name__ == "__main__":
    sys.exit(main())
