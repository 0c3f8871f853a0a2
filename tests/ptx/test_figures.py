"""The page states what kernels do in calls of a common size: python -m tests.ptx.figures."""

from pathlib import Path

import pytest

from tests.ptx import figures, interpreter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu-code.md"
SECTORS = 5  # the column


def cells_of(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


@pytest.mark.parametrize("call", figures.CALLS, ids=lambda call: call.name)
def test_the_page_states_what_is_done(call: figures.Call) -> None:
    if not interpreter.has_warpgroups():
        pytest.skip("the page states figures of compute_90a")
    found = cells_of(figures.row(call))
    [stated] = (
        cells_of(line)
        for line in PAGE.read_text().splitlines()
        if line.startswith(f"| {call.name} |")
    )
    # Sectors depend a little on where memory begins.
    sectors = found.pop(SECTORS), stated.pop(SECTORS)
    assert found == stated
    assert float(sectors[0]) == pytest.approx(float(sectors[1]), abs=0.01)
