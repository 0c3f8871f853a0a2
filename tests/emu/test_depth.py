"""How deep the pipelines of attention are on each device: as its shared memory allows."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.emu.planted_bugs import Builder
from tests.emu.test_limits import DEVICES

# Bytes of a cached element, elements of a head, columns of a block.
Shape = tuple[int, int, int]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu-kernels.md"
# The rows of a table of that page: stages, and blocks of a multiprocessor as its shared memory
# allows, on an A100, an L4 and an H100; KB of a block, by stages.
SHAPES = {
    (2, 64, 8): ((3, 2), (2, 2), (3, 3), {3: 57, 2: 41}),
    (2, 96, 8): ((2, 2), (3, 1), (3, 2), {3: 91, 2: 65}),
    (2, 128, 8): ((2, 2), (2, 1), (3, 2), {3: 113, 2: 81}),
    (2, 128, 16): ((3, 1), (2, 1), (2, 2), {3: 130, 2: 98}),
    (2, 256, 8): ((2, 1), (1, 1), (2, 1), {2: 161, 1: 97}),
    (1, 128, 8): ((4, 2), (4, 1), (4, 2), {4: 81}),
    (2, 576, 16): ((4, 1), (2, 1), (2, 2), {4: 154, 2: 82}),
    (2, 576, 32): ((3, 1), (2, 1), (3, 1), {3: 128, 2: 92}),
}
COLUMNS = {"A100": 0, "L4": 1, "4090": 1, "H100": 2, "B200": 2}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("depth")
    kernel = ("attention/mma_launch.cuh",)
    return Builder(directory, "depth_driver.cpp", kernel, ("core/check.cpp",)).build("depth")


def chosen(driver: Path, device: str) -> dict[Shape, tuple[int, int, int]]:
    """Return stages, blocks of a multiprocessor and bytes of a block, by shape."""
    environment = os.environ | {"QUIRE_EMULATED_DEVICE": device}
    output = subprocess.run([driver], env=environment, capture_output=True, text=True, check=True)
    rows = [tuple(map(int, line.split())) for line in output.stdout.splitlines()]
    return {(size, head, columns): (*rest,) for size, head, columns, *rest in rows}


@pytest.mark.parametrize("device", DEVICES)
def test_every_shape_fits_every_device(driver: Path, device: str) -> None:
    for shape, (stages, blocks, shared_bytes) in chosen(driver, device).items():
        assert stages >= 1, shape
        assert blocks >= 1, shape
        assert shared_bytes <= DEVICES[device] << 10, shape


@pytest.mark.parametrize("device", COLUMNS)
def test_a_device_has_most_bytes_in_flight(driver: Path, device: str) -> None:
    depths = chosen(driver, device)
    for shape, row in SHAPES.items():
        stages, blocks, shared_bytes = depths[shape]
        assert (stages, blocks) == row[COLUMNS[device]], shape
        assert round(shared_bytes / 1024) == row[-1][stages], shape


def test_the_page_has_the_same_table() -> None:
    found = {}
    for line in PAGE.read_text().splitlines():
        if not re.match(r"\| (16 bits|e4m3), .*\d x \d", line):
            continue
        name, *depths, kilobytes = line.strip("| ").split(" | ")
        size = 1 if name.startswith("e4m3") else 2
        head, columns = map(int, re.findall(r"\d+", name)[-2:])
        found[size, head, columns] = [*depths, kilobytes]
    stated = {
        shape: [
            *(f"{stages} x {blocks}" for stages, blocks in depths),
            ", ".join(map(str, kilobytes.values())),
        ]
        for shape, (*depths, kilobytes) in SHAPES.items()
    }
    assert found == stated
