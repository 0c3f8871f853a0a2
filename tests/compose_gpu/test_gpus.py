"""deploy/compose.gpu.yaml on an engine that gives containers GPUs, to workers that emulate them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.compose.stack import CONTAINER_USER, DEPLOY, Stack, docker
from tests.e2e.served_model import save_served_model
from tests.manifests.tiny_model import tokens_of, tokens_of_processes

WORKERS = ("worker-0", "worker-1")
# A worker runs its largest step when it starts, which takes the emulator long.
OPTIONS = (
    "--dtype float32 --invariant --max-num-seqs 4 --max-num-batched-tokens 64 --max-model-len 64 "
    "--kv-cache-gib 0.01"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that the containers' user can read."""
    directory = save_served_model(tmp_path_factory.mktemp("model"), "llama")
    for each in (directory, *directory.iterdir()):
        os.chown(each, CONTAINER_USER, CONTAINER_USER)
    return directory


@contextmanager
def running_stack(model: Path, tag: str, directory: Path, overlay: str) -> Iterator[Stack]:
    """The cell of compose.yaml and an overlay, healthy.

    Args:
        model: directory.
        tag: of the images.
        directory: for certificates and keys.
        overlay: file of deploy/, or a path.
    """
    settings = {
        "IMAGE_TAG": tag,
        "QUIRE_MODEL": str(model),
        "QUIRE_SCHEDULER_OPTIONS": OPTIONS,
        "QUIRE_WORKER_CPUS": "1",
        "QUIRE_WORKER_MEMORY": "4g",
    }
    files = ("compose.yaml", overlay)
    stack = Stack(f"quire-gpu-{os.getpid()}", directory, files, settings)
    stack.make_credentials()
    try:
        try:
            stack.up()
        except AssertionError:
            print(stack.logs())
            raise
        yield stack
    finally:
        stack.down()


def in_worker(stack: Stack, name: str, *command: str) -> str:
    """Return what a command prints in a worker's container."""
    return docker("exec", stack.container(name), *command)


def devices_of(stack: Stack) -> list[str]:
    """Return what each worker's metrics say that it computes on."""
    found = []
    for name in WORKERS:
        page = in_worker(stack, name, "python", "-c", SCRAPE)
        found.append(next(line for line in page.splitlines() if "device=" in line))
    return [line.partition('device="')[2].partition('"')[0] for line in found]


SCRAPE = """
from urllib.request import urlopen
print(urlopen("http://127.0.0.1:9090/metrics").read().decode())
"""


async def test_each_worker_has_its_gpu_and_computes_the_tokens_of_a_cpu(
    model: Path, image_tag: str, tmp_path: Path
) -> None:
    expected = await tokens_of_processes(model)
    with running_stack(model, image_tag, tmp_path, "compose.gpu.yaml") as stack:
        assert devices_of(stack) == ["cuda:0", "cuda:0"], "the first that each of them sees"
        for number, name in enumerate(WORKERS):
            nodes = in_worker(stack, name, "sh", "-c", "ls /dev | grep nvidia")
            assert nodes == f"nvidia{number}"
        async with stack.client() as client:
            assert await tokens_of(client) == expected


def test_without_a_reservation_a_worker_has_no_gpu(
    model: Path, image_tag: str, tmp_path: Path
) -> None:
    overlay = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())
    for name in WORKERS:
        del overlay["services"][name]["deploy"]
    without = tmp_path / "compose.without.yaml"
    without.write_text(yaml.safe_dump(overlay))
    with running_stack(model, image_tag, tmp_path, str(without)) as stack:
        assert devices_of(stack) == ["cpu", "cpu"]
