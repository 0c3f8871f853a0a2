"""`quire size`: what it prints of a model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.cli.main import app
from launch.cluster.config import embedded_model
from worker_svc import ops
from worker_svc.isa import isas_of


@pytest.fixture(autouse=True)
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of this process stay where they go: what a runner of commands captures is closed."""
    monkeypatch.setattr("quire.observe.log.configure", lambda *_: None)


def test_it_prints_what_a_model_takes() -> None:
    shown = CliRunner().invoke(app, ["size", str(embedded_model()), "--quantization", "w8"])
    assert shown.exit_code == 0, shown.output
    lines = [line.split()[0] for line in shown.output.splitlines()]
    assert lines == ["model", "weights", "cache", "ranks", "fits"]
    assert "none " in shown.output
    found = json.loads(CliRunner().invoke(app, ["size", "--json"]).output)
    # Six layers of keys and values of four heads of 32 elements, in two bytes each.
    assert found["token_bytes"] == 6 * 2 * 4 * 32 * 2
    assert found["ranks"][:2] == [1, 2]
    assert 0 < found["weight_bytes"]["w4"] < found["weight_bytes"]["none"]


@pytest.mark.parametrize("command", ["size", "identify"])
@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [
        (["no/such/model"], {}, "model: "),
        ([""], {}, "model: must not be empty, got ''"),
        (["--device", "gpu"], {}, "device: must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ([], {"QUIRE_ISA": "foo"}, "QUIRE_ISA: must be one of "),
    ],
)
def test_a_mistake_is_one_line_before_torch_is_loaded(
    command: str,
    arguments: list[str],
    variables: dict[str, str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "worker_svc.device.open", None)
    shown = CliRunner(env=variables).invoke(app, [command, *arguments])
    assert shown.exit_code in (1, 2)
    assert shown.output.startswith(f"error: {error}"), shown.output
    assert shown.output.count("\n") == 1


def test_no_instruction_set_that_kernels_run_is_refused_before_them(tmp_path: Path) -> None:
    assert {*isas_of()} >= {*ops.available_isas()}
    every = ("avx512_bf16", "avx512", "avx2", "scalar")
    assert isas_of(tmp_path / "none") == every
    cpuinfo = tmp_path / "cpuinfo"
    for flags, names in (
        ("sse", ("scalar",)),
        ("fma avx2 f16c", ("avx2", "scalar")),
        # Linux before 5.3 has no name for more.
        ("avx2 avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni", every),
    ):
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert isas_of(cpuinfo) == names
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # of aarch64
    assert isas_of(cpuinfo) == every


def test_an_instruction_set_that_the_kernels_refuse_names_its_variable() -> None:
    code = "from worker_svc.ops import compiled"
    variables = {**os.environ, "QUIRE_ISA": "foo"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=variables, check=False, capture_output=True, text=True
    )
    assert "ConfigError: QUIRE_ISA: must be one of " in found.stderr
