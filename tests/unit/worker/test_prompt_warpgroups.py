"""Which kernel takes prompts on a GPU that has warpgroups."""

import os
import subprocess
import sys

import pytest

SHOW = """
import os
from worker_svc import ops
for allowed in (False, True):
    ops.allow_prompt_warpgroups(allowed)
    print(os.environ["QUIRE_PROMPT_WARPGROUPS"])
"""


@pytest.mark.parametrize(("asked", "found"), [(None, "01"), ("0", "00"), ("1", "11")])
def test_what_the_environment_asks_for_goes_before_the_model(asked: str | None, found: str) -> None:
    environment = {key: value for key, value in os.environ.items() if "WARPGROUPS" not in key}
    if asked is not None:
        environment["QUIRE_PROMPT_WARPGROUPS"] = asked
    process = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    )
    assert "".join(process.stdout.split()) == found
