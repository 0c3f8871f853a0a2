"""Digests of tokens and logits that every processor must give: `python -m tests.models.digests`.

Each model has one in each type, over all steps of a few prompts: greedy tokens and the
bits of the logits. Weights are whole numbers of 1/4096 from a generator that is exact everywhere,
so a digest depends on docs/numerics.md alone. With `--write` they become digests.json, which
test_digests.py compares, beside the ARITHMETIC_VERSION that they were written with.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from launch.cluster.supervisor import embedded_model
from tests.models.driver import Driver, load_runner
from tests.variants import VARIANTS
from worker_svc.loading.numerics_id import ARITHMETIC_VERSION

FILE = Path(__file__).with_name("digests.json")
DTYPES = ("float32", "bfloat16")
PROMPTS = ([5, 9, 77, 30, 31, 8, 100, 12, 60, 3], [4, 128], list(range(20, 60)))
NUM_TOKENS = 8
EMBEDDED = "the embedded model"
# Models whose layers are quantised as they are loaded.
QUANTIZED = {
    f"{name}, {method}": (name, method)
    for name, method in (
        *((EMBEDDED, method) for method in ("w8a8", "w8", "w4")),
        ("mixtral", "w8a8"),
        ("deepseek_v3", "w8a8"),
    )
}
NAMES = (EMBEDDED, *VARIANTS, *QUANTIZED)
VERSION = "arithmetic_version"

Digests = dict[str, Any]


def save_exact_model(directory: Path, config: PreTrainedConfig) -> Path:
    """Write a model whose weights are the same numbers on every machine."""
    generator = np.random.default_rng(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    biases = [each for each in model.named_buffers() if each[0].endswith("e_score_correction_bias")]
    with torch.no_grad():
        for _, parameter in sorted([*model.named_parameters(), *biases], key=itemgetter(0)):
            units = torch.from_numpy(generator.integers(-2048, 2048, tuple(parameter.shape)))
            base = 1.0 if parameter.ndim == 1 and parameter.requires_grad else 0.0
            parameter.copy_(base + units / (4096.0 if parameter.ndim > 1 else 16384.0))
    model.save_pretrained(directory)
    return directory


def digest(name: str, directory: Path, dtype: str) -> str:
    """Return the digest of the tokens and logits of a model, which `saved` has written."""
    _, quantization = QUANTIZED.get(name, (name, "none"))
    driver = Driver(
        load_runner(directory, dtype=dtype, max_num_seqs=len(PROMPTS), quantization=quantization)
    )
    result = hashlib.sha256()
    for index, prompt in enumerate(PROMPTS):
        driver.add(index, prompt)
    for _ in range(NUM_TOKENS):
        driver.step()
        for index in range(len(PROMPTS)):
            assert driver.logits[index].isfinite().all()
            result.update(driver.logits[index].numpy().tobytes())
    for index in range(len(PROMPTS)):
        result.update(np.array(driver.tokens[index], np.int64).tobytes())
    return result.hexdigest()


@contextmanager
def saved(name: str) -> Iterator[Path]:
    """Yield the directory of a model."""
    name, _ = QUANTIZED.get(name, (name, "none"))
    if name == EMBEDDED:
        yield embedded_model()
        return
    with tempfile.TemporaryDirectory() as parent:
        yield save_exact_model(Path(parent), VARIANTS[name])


def checked(found: Digests, written: Digests) -> Digests:
    """Return what is to be written in the place of other digests.

    Raises:
        ValueError: an entry changes, and ARITHMETIC_VERSION with it does not.
    """
    changed = [name for name in found if name in written and found[name] != written[name]]
    if changed and written[VERSION] >= ARITHMETIC_VERSION:
        raise ValueError(
            f"ARITHMETIC_VERSION: must be above {written[VERSION]}, since the digests of "
            f"{', '.join(changed)} change, got {ARITHMETIC_VERSION}"
        )
    return {VERSION: ARITHMETIC_VERSION, **found}


def main() -> None:
    """Print the digests, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write them to {FILE.name}")
    arguments = parser.parse_args()
    found = {}
    for name in NAMES:
        with saved(name) as directory:
            found[name] = {dtype: digest(name, directory, dtype) for dtype in DTYPES}
        print(name, *(value[:16] for value in found[name].values()), file=sys.stderr)
    if arguments.write:
        written = checked(found, json.loads(FILE.read_text()))
        FILE.write_text(json.dumps(written, indent=1) + "\n")
    else:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
