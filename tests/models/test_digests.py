"""Each instruction set of this processor gives the tokens and logits that are committed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.models.digests import DTYPES, FILE, NAMES, VERSION, checked, digest, saved
from worker_svc import ops
from worker_svc.loading.numerics_id import ARITHMETIC_VERSION

EXPECTED = json.loads(FILE.read_text())


@pytest.fixture(autouse=True)
def _chosen_isa_comes_back() -> Iterator[None]:
    before = ops.isa()
    yield
    ops.set_isa(before)


@pytest.mark.parametrize("name", NAMES)
def test_digests_are_those_committed(name: str) -> None:
    with saved(name) as directory:
        for isa in ops.available_isas():
            ops.set_isa(isa)
            found = {dtype: digest(name, directory, dtype) for dtype in DTYPES}
            assert found == EXPECTED[name], isa


@pytest.mark.deep
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_what_torch_computes_does_not_depend_on_the_processor(capability: str) -> None:
    """Residuals are added by torch, for example; it has code of its own for each processor."""
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", capability.upper()):
        pytest.skip(f"torch runs its code for {capability} here anyway")
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.digests"],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == {name: EXPECTED[name] for name in NAMES}


def test_digests_belong_to_the_arithmetic_of_this_version() -> None:
    """A cell of another version must have another numerics id."""
    assert EXPECTED[VERSION] == ARITHMETIC_VERSION
    assert EXPECTED.keys() == {VERSION, *NAMES}


def test_changed_digests_are_written_with_a_higher_version_only() -> None:
    kept = {name: EXPECTED[name] for name in NAMES}
    assert checked(kept, EXPECTED) == EXPECTED
    assert checked({**kept, "a new model": {}}, EXPECTED).keys() == {*EXPECTED, "a new model"}
    changed = {**kept, NAMES[1]: kept[NAMES[0]]}
    with pytest.raises(ValueError, match=rf"must be above .* the digests of {NAMES[1]} change"):
        checked(changed, EXPECTED)
    lower = {**EXPECTED, VERSION: ARITHMETIC_VERSION - 1}
    assert checked(changed, lower)[VERSION] == ARITHMETIC_VERSION
