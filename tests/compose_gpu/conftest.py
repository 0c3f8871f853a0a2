"""The image of a worker on an emulated GPU, and an engine that gives containers GPUs."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.stack import IMAGE_TAG, ROOT, docker, why_not

HERE = Path(__file__).parent
EMULATED = ROOT / "build/emulated/csrc"
# The images that workers may run in: that for CPUs, and that with CUDA's torch.
WORKERS = ("worker", "worker-cuda")
# Of an engine that found no command nvidia-container-runtime-hook when it started.
NO_DRIVER = "could not select device driver"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.compose_gpu)


@pytest.fixture(scope="session")
def image_tag(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tag of all images, quire-worker-cuda among them, which is removed in the end."""
    if (reason := why_not(IMAGE_TAG)) is not None:
        pytest.skip(reason)
    kernels = next(EMULATED.glob("_C*.so"), None)
    if kernels is None:
        pytest.skip("containers: there are no emulated kernels (make test-compose-gpu builds them)")
    try:
        device = '"device=0"'
        docker("run", "--rm", "--gpus", device, "--entrypoint", "true", f"quire-worker:{IMAGE_TAG}")
    except AssertionError as error:
        if NO_DRIVER not in str(error):
            raise
        pytest.skip(
            "containers: the engine knows no driver nvidia (start dockerd with "
            "tests/compose_gpu/nvidia on its PATH)"
        )
    tag = f"emulated-{os.getpid()}"
    worker = worker_image(os.environ.get("WORKER") or "worker", IMAGE_TAG)
    print(f"workers: {worker}, with an emulated GPU")
    _build(tmp_path_factory.mktemp("image"), kernels, worker, f"quire-worker-cuda:{tag}")
    images = [f"quire-worker-cuda:{tag}"]
    try:
        for service in ("router", "scheduler", "worker"):
            docker("tag", f"quire-{service}:{IMAGE_TAG}", f"quire-{service}:{tag}")
            images.append(f"quire-{service}:{tag}")
        yield tag
    finally:
        docker("rmi", "--force", *images)


def worker_image(name: str, tag: str) -> str:
    """Return the image that workers run in; the test fails without it.

    Args:
        name: of `WORKERS`.
        tag: of the images.
    """
    if name not in WORKERS:
        pytest.fail(f"WORKER: must be {' or '.join(WORKERS)}, got {name}", pytrace=False)
    image = f"quire-{name}:{tag}"
    if not docker("image", "ls", "--quiet", image):
        pytest.fail(
            f"WORKER={name}: there is no image {image} (make images TARGETS={name})", pytrace=False
        )
    return image


def _build(directory: Path, kernels: Path, worker: str, image: str) -> None:
    """Build the image of a worker that computes on an emulated GPU."""
    root = directory / "emulated"
    modules = (ROOT / "tests/emu").glob("[!t]*.py")  # all but tests
    for path in (*modules, HERE / "entry.py"):
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(kernels, root / "_C.so")
    dockerfile = str(HERE / "Dockerfile")
    argument = f"WORKER_IMAGE={worker}"
    docker(
        "build",
        "--quiet",
        "--file",
        dockerfile,
        "--build-arg",
        argument,
        "--tag",
        image,
        str(directory),
    )
