"""The emulator refuses what the device that it plays has no shared memory for."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.emu.planted_bugs import Builder

# KB that a block may ask for: CUDA C++ Programming Guide, Technical Specifications.
DEVICES = {"small": 227, "A100": 163, "L4": 99, "4090": 99, "H100": 227, "B200": 227}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("limits")
    return Builder(directory, "limits_driver.cpp", ("launch.h",), ("core/check.cpp",)).build(
        "launch"
    )


def start(driver: Path, device: str, shared_bytes: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [driver, str(shared_bytes)],
        env=os.environ | {"QUIRE_EMULATED_DEVICE": device},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_gets_what_the_device_has(driver: Path, device: str) -> None:
    limit = DEVICES[device] << 10
    assert start(driver, device, limit).returncode == 0
    refused = start(driver, device, limit + 1)
    assert (refused.returncode, refused.stderr) == (1, "CUDA: shared memory: invalid argument\n")
