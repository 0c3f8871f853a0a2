"""`quire size`: what it prints of a model."""

import json

import pytest
from typer.testing import CliRunner

from launch.cli.main import app
from launch.cluster.config import embedded_model


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


def test_what_is_no_model_is_one_line() -> None:
    shown = CliRunner().invoke(app, ["size", "no/such/model"])
    assert shown.exit_code == 1
    assert shown.output.startswith("error: model: ")
    assert shown.output.count("\n") == 1
