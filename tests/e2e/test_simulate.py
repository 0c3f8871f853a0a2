"""`quire simulate` as a user runs it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launch.cli.main", "simulate", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"COLUMNS": "120"},
    )


def test_policies_are_printed_written_and_drawn_side_by_side(tmp_path: Path) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "runs.svg"
    result = simulate(
        *("--cells", "4", "--streams", "60", "--duration", "8", "--period", "8"),
        *("--kill-cells", "1@4", "--drain-cells", "1@5", "--processes", "2"),
        *("--json", str(report), "--plot", str(picture)),
    )
    assert result.returncode == 0, result.stderr
    assert "computed from data sheets, not measured" in result.stdout
    assert "a day compressed to 8 s" in result.stdout
    written = json.loads(report.read_text())
    policies = ["prefix-aware", "least-loaded", "round-robin"]
    assert list(written) == policies
    header = next(line for line in result.stdout.splitlines() if policies[0] in line)
    assert header.split() == policies
    row = next(line for line in result.stdout.splitlines() if line.startswith("prefix hit rate"))
    printed = [float(each) for each in re.findall(r"([0-9.]+)%", row)]
    rates = [100 * written[each]["summary"]["prefix_hit_rate"] for each in policies]
    assert printed == pytest.approx(rates, abs=0.05)
    assert written["prefix-aware"]["summary"]["moved_requests"] > 0
    assert len(written["prefix-aware"]["series"]["streams"]) == 8
    assert picture.read_text().count("<svg") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kill-cells", "3"], "--kill-cells: N@T, such as 10@15, got '3'"),
        (["--cells", "2", "--kill-cells", "3@1"], "kill cells: must be in [1, 2], got 3"),
        (["--cells", "0", "--streams", "9"], "num_cells: must be in [1, 100000], got 0"),
        (
            ["--cost-model", "none"],
            "--cost-model: must be one of 405b-h100x8, demo-cpu or a file, got none",
        ),
        (["--plot", "runs.txt"], "--plot: must end in .svg, .png or .pdf, got runs.txt"),
    ],
)
def test_a_mistake_is_reported_in_one_line(arguments: list[str], message: str) -> None:
    result = simulate(*arguments)
    assert result.returncode == 1
    assert result.stderr == f"error: {message}\n"
