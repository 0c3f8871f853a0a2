"""`make demo`: what the first screen of the README shows works."""

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_the_demo_streams_and_stops() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"3 requests at once: \d+ tokens in \d+\.\d\d s = \d+ tokens/s", done.stdout)
    assert "Stopped: router, scheduler, worker 0" in done.stdout
