"""Copies that land late and copies that land early: what plain loads read must allow for both."""

import pytest

from tests.emu.planted_bugs import EMULATOR, Builder, run

KERNEL = ("copies_kernel.h",)
BARRIER = "__syncthreads();  // the step is there, and all are done with the one before it"
MUTANTS = {
    # Seen by a copy that lands late.
    "nothing waited for": ("ptx::async_wait<kStages - 2>();", ""),
    "too few copies waited for": ("async_wait<kStages - 2>", "async_wait<kStages - 1>"),
    # Seen by a copy that lands early.
    "a copy into the stage that is read": ("copy(step + kStages - 1)", "copy(step + kStages)"),
    "a copy before all are done": (
        f"{BARRIER}\n    copy(step + kStages - 1);",
        f"copy(step + kStages - 1);\n    {BARRIER}",
    ),
    "no barrier": (BARRIER, ""),
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    directory = tmp_path_factory.mktemp("copies")
    return Builder(directory, "copies_driver.cpp", KERNEL, (), EMULATOR)


def test_the_kernel_itself_passes(builder: Builder) -> None:
    result = run(builder.build("none"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_noticed(builder: Builder, name: str) -> None:
    assert run(builder.build(name, *MUTANTS[name])).returncode != 0
