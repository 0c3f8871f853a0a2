"""Which lanes there are, and which of them each target runs."""

from collections.abc import Sequence
from dataclasses import replace

from tools.lanes.lane import OUTPUT, PYTHON, ROOT, Lane, make_lane, pytest_lane, script_lane

# Tests of services wait for processes, most of the time, and for deadlines: three files at a time.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile")

# Lanes that compute begin in this order, the longest first.
DOCS = pytest_lane("docs", "tests/docs", arithmetic=False)
TEST = (
    pytest_lane("services", *SIDE_BY_SIDE, "tests/e2e", "tests/rpc", waits=True),
    pytest_lane("unit", "tests/unit", "tests/monitoring", tools=("promtool",)),
    pytest_lane("kernels", "tests/kernels"),
    pytest_lane("models", "tests/models"),
    DOCS,
)
# nvcc compiles every kernel for the oldest and the newest architecture that it is tested on, or
# not at all where nothing has changed.
MACHINE_CODE = pytest_lane("machine-code", "tests/machine_code", arithmetic=False)
OTHER_CASES = pytest_lane(
    *("other-cases", "tests/unit", "tests/docs", "tests/monitoring", "tests/rpc", "tests/e2e"),
    *("tests/kernels", "tests/models"),
    QUIRE_TEST_DEPTH="deep",
)
# nvcc's PTX of every kernel, interpreted: 36 minutes of one core. It builds where the emulated
# lane does, one after the other.
PTX = script_lane("ptx", "csrc/ptx_tests.sh", arithmetic=False)
# A compilation of a kernel for each bug: three quarters of an hour of one core.
PLANTED_BUGS = pytest_lane("planted-bugs", "tests/emu")
CHAOS = Lane("chaos", (PYTHON, "-m", "tests.chaos", "cells", "--seconds", "120"), waits=True)
SOAK = Lane("soak", (PYTHON, "-m", "tests.chaos", "soak", "--requests", "2000"), waits=True)
# For one card: tests/machine_code compiles for the others.
CUDA = Lane(
    "cuda-build",
    ("csrc/dev_build.sh", "build/cuda"),
    {"QUIRE_CUDA": "1", "CUDAARCHS": "90a-real"},
    arithmetic=False,
)
DEEP = (
    script_lane("emulated", "csrc/emulated_tests.sh"),
    script_lane("sanitized", "csrc/sanitized_tests.sh"),
    PLANTED_BUGS,
    OTHER_CASES,
    CHAOS,
    SOAK,
    PTX,
    MACHINE_CODE,
    CUDA,
)
LINT = Lane("lint", ("make", "lint"), arithmetic=False)
CONTAINERS = (
    Lane("images", ("make", "images"), arithmetic=False, tools=("docker", "debootstrap")),
    make_lane("compose", "test-compose", waits=True, after=("images",), tools=("docker-compose",)),
    make_lane("manifests", "test-manifests", waits=True, after=("images",), arithmetic=False),
)
WHEELS = Lane("wheels", ("tools/wheels.sh", "--quick"))
COMPAT = make_lane(
    *("compat", "test-compat"),
    waits=True,
    tools=("node", "grpc_tools_ruby_protoc", "grpc_cpp_plugin"),
)
# The image with CUDA's torch and kernels: gigabytes to fetch, and every kernel to compile.
CONTAINERS_CUDA = Lane(
    "containers-cuda",
    (str(ROOT / "tests/compose_gpu/nightly.sh"),),
    {"PYTEST_ADDOPTS": f"--junitxml={OUTPUT / 'containers-cuda.xml'}"},
    waits=True,
)
# What a change has to pass, within the time that CI has where no result stands. PTX takes as long
# as all others together: begun after any of them, it would be alone at the end.
CI = (PTX, LINT, *CONTAINERS, MACHINE_CODE, *TEST, COMPAT, CHAOS, SOAK, WHEELS)
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
            arithmetic=False,
            ARCHITECTURE=architecture,
            DEVICES="small A100 L4",
            QUIRE_PTX_ALL="1",
            QUIRE_TEST_DEPTH="all",
        )
        for architecture in ("80", "90", "90a")
    ),
    PLANTED_BUGS,
    OTHER_CASES,
    replace(MACHINE_CODE, name="machine-code-all", environment={"QUIRE_TEST_DEPTH": "all"}),
    CUDA,
    # It builds where every-order does, one after the other.
    make_lane("compose-gpu", "test-compose-gpu", waits=True, after=("every-order",)),
    CONTAINERS_CUDA,
)


def plan(name: str) -> Sequence[Lane]:
    """Return the lanes of a target."""
    return LANES[name]


RELEASE = "release"
LANES = {"test": TEST, "deep": DEEP, "nightly": NIGHTLY, "ci": CI, RELEASE: (*CI, *NIGHTLY)}
PLANS = tuple(LANES)
