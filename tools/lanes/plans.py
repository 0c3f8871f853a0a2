"""Which lanes there are, and which of them each target runs."""

from collections.abc import Sequence
from dataclasses import replace

from tools.lanes.lane import OUTPUT, PYTEST, PYTHON, ROOT, Lane, pytest_lane, script_lane

# Tests of services wait for processes, most of the time, and for deadlines: three files at a time.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile")

# Lanes that compute begin in this order, the longest first.
TEST = (
    pytest_lane("services", *SIDE_BY_SIDE, "tests/e2e", "tests/rpc", waits=True),
    pytest_lane("unit", "tests/unit", "tests/docs", "tests/monitoring"),
    pytest_lane("kernels", "tests/kernels", "tests/models"),
)
# nvcc compiles every kernel for the architectures of the build, in three minutes on two cores, or
# not at all where nothing has changed.
MACHINE_CODE = pytest_lane("machine-code", "tests/machine_code")
# They start services, too.
OTHER_CASES = replace(
    pytest_lane(
        *("other-cases", "tests/unit", "tests/docs", "tests/monitoring", "tests/rpc", "tests/e2e"),
        *("tests/kernels", "tests/models"),
        QUIRE_TEST_DEPTH="deep",
    ),
    again=("env", "QUIRE_TEST_DEPTH=deep", *PYTEST),
)
# nvcc's PTX of every kernel, interpreted: eight minutes of one core. It builds where the emulated
# lane does, one after the other.
PTX = script_lane("ptx", "csrc/ptx_tests.sh")
# A compilation of a kernel for each bug: three quarters of an hour of one core.
PLANTED_BUGS = pytest_lane("planted-bugs", "tests/emu")
DEEP = (
    script_lane("emulated", "csrc/emulated_tests.sh"),
    script_lane("sanitized", "csrc/sanitized_tests.sh"),
    PLANTED_BUGS,
    OTHER_CASES,
    Lane("chaos", (PYTHON, "-m", "tests.chaos", "cells", "--seconds", "120"), waits=True),
    Lane("soak", (PYTHON, "-m", "tests.chaos", "soak", "--requests", "2000"), waits=True),
)
# The image with CUDA's torch and kernels: gigabytes to fetch, and every kernel to compile.
CONTAINERS_CUDA = Lane(
    "containers-cuda",
    (str(ROOT / "tests/compose_gpu/nightly.sh"),),
    {"PYTEST_ADDOPTS": f"--junitxml={OUTPUT / 'containers-cuda.xml'}"},
    waits=True,
)
NIGHTLY = (
    script_lane(
        "every-order", "csrc/emulated_tests.sh", QUIRE_ALL_ORDERS="1", QUIRE_TEST_DEPTH="all"
    ),
    script_lane("sanitized", "csrc/sanitized_tests.sh", QUIRE_TEST_DEPTH="all"),
    # Cards with other shared memory, and all their multiprocessors: plans and pipelines are others.
    *(
        script_lane(f"as-{card}", "csrc/emulated_tests.sh", CARD=card, QUIRE_TEST_DEPTH="all")
        for card in ("A100", "L4")
    ),
    # Every depth of the pipelines is some device's; a kernel that nothing runs is an error.
    *(
        script_lane(
            f"ptx-{architecture}",
            "csrc/ptx_tests.sh",
            ARCHITECTURE=architecture,
            DEVICES="small A100 L4",
            QUIRE_PTX_ALL="1",
            QUIRE_TEST_DEPTH="all",
        )
        for architecture in ("80", "90", "90a")
    ),
    PLANTED_BUGS,
    replace(MACHINE_CODE, environment={"QUIRE_TEST_DEPTH": "all"}),
    CONTAINERS_CUDA,
)
CONTAINERS = (
    Lane("images", ("make", "images")),
    Lane(
        "compose",
        ("make", "test-compose"),
        {"PYTEST_ADDOPTS": f"--junitxml={OUTPUT / 'compose.xml'}"},
        waits=True,
        after=("images",),
        again=(*PYTEST, "-m", "compose"),
    ),
    Lane(
        "manifests",
        ("make", "test-manifests"),
        {"PYTEST_ADDOPTS": f"--junitxml={OUTPUT / 'manifests.xml'}"},
        waits=True,
        after=("images",),
    ),
)
COMPOSE_GPU = Lane(
    "compose-gpu",
    ("make", "test-compose-gpu"),
    {"PYTEST_ADDOPTS": f"--junitxml={OUTPUT / 'compose-gpu.xml'}"},
    waits=True,
    after=("images", "emulated"),
)
WHEELS = Lane("wheels", ("tools/wheels.sh", "--quick"))
COMPAT = Lane(
    "compat",
    ("make", "test-compat"),
    {"PYTEST_ADDOPTS": f"--junitxml={OUTPUT / 'compat.xml'}"},
    waits=True,
    optional=True,
    again=(*PYTEST, "-m", "compat"),
)
LINT = Lane("lint", ("make", "lint"))
# For one card: tests/machine_code compiles for the others.
CUDA = Lane(
    "cuda-build",
    ("csrc/dev_build.sh", "build/cuda"),
    {"QUIRE_CUDA": "1", "CUDAARCHS": "90a-real"},
)


def plan(name: str) -> Sequence[Lane]:
    """Return the lanes of a target."""
    return {
        "test": TEST,
        "deep": (*DEEP, PTX, MACHINE_CODE, CUDA),
        "nightly": NIGHTLY,
        "ci": (
            *(LINT, *CONTAINERS, *TEST, PTX, MACHINE_CODE, COMPAT),
            *(replace(lane, optional=True) for lane in (WHEELS, *DEEP, COMPOSE_GPU, CUDA)),
        ),
    }[name]


PLANS = ("test", "deep", "nightly", "ci")
