"""How deep the pipelines of attention are on each device: as its shared memory allows."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.emu.planted_bugs import Builder
from tests.emu.test_limits import DEVICES

# Bytes of a cached element, elements of a head, columns of a block.
Shape = tuple[int, int, int]
DECODE_128: Shape = (2, 128, 8)
PREFILL_128: Shape = (2, 128, 16)
LATENT: Shape = (2, 576, 16)
WIDE_LATENT: Shape = (2, 576, 32)
# Stages, and blocks of a multiprocessor as its shared memory allows.
EXPECTED = {
    "A100": {DECODE_128: (2, 2), PREFILL_128: (3, 1), (2, 64, 8): (3, 2), (2, 256, 8): (2, 1)},
    "L4": {DECODE_128: (2, 1), PREFILL_128: (2, 1), (2, 64, 8): (2, 2), (2, 256, 8): (1, 1)},
    "H100": {DECODE_128: (3, 2), PREFILL_128: (2, 2), (2, 64, 8): (3, 3), (2, 256, 8): (2, 1)},
}
EXPECTED_LATENT = {
    "A100": {LATENT: (4, 1), WIDE_LATENT: (3, 1)},
    "L4": {LATENT: (2, 1), WIDE_LATENT: (2, 1)},
    "H100": {LATENT: (2, 2), WIDE_LATENT: (3, 1)},
}


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


@pytest.mark.parametrize("device", EXPECTED)
def test_a_device_has_most_bytes_in_flight(driver: Path, device: str) -> None:
    depths = chosen(driver, device)
    expected = EXPECTED[device] | EXPECTED_LATENT[device]
    assert {shape: depths[shape][:2] for shape in expected} == expected
