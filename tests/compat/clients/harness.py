"""What each client script does: read the task from stdin, answer its cases, write the texts.

The task has "grpc" (host:port), "http" (a URL), "model" and "cases", each a prompt and params.
"""

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# No client may ask for anything but the cluster.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
SIDE_BY_SIDE = 8


def run(make: Callable[[dict[str, Any]], Callable[[str, dict[str, Any]], Any]]) -> None:
    """Answer the cases of the task with the function that `make` returns for it."""
    task = json.load(sys.stdin)
    answer = make(task)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        texts = list(pool.map(lambda case: answer(case["prompt"], case["params"]), task["cases"]))
    json.dump(texts, sys.stdout)
