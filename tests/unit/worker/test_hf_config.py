"""Readers of config.json: what is absent, what is null, and the least of an integer."""

from pathlib import Path
from typing import Any

import pytest

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import HfConfig


def config(**values: Any) -> HfConfig:
    return HfConfig(values, "config.json")


def test_null_is_told_from_absent() -> None:
    assert config(rank=None).is_null("rank")
    assert not config(rank=0).is_null("rank")
    assert not config().is_null("rank")


def test_other_readers_take_null_as_absent() -> None:
    for each in (config(rank=None), config()):
        assert "rank" not in each
        assert each.integer("rank", 7) == 7
        with pytest.raises(ModelLoadError, match=r"config\.json: rank: is missing"):
            each.integer("rank")


@pytest.mark.parametrize("value", [0, -3, 1.0, 1.7, True, "1"])
def test_integers_are_positive(value: object) -> None:
    with pytest.raises(ModelLoadError, match=f"rank: must be a positive integer, got {value!r}"):
        config(rank=value).integer("rank")


@pytest.mark.parametrize("value", [-3, 1.7, False])
def test_integers_may_have_another_least(value: object) -> None:
    assert config(rank=0).integer("rank", least=0) == 0
    words = f"rank: must be an integer of at least 0, got {value!r}"
    with pytest.raises(ModelLoadError, match=words):
        config(rank=value).integer("rank", least=0)


def test_a_byte_order_mark_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}', "utf-8-sig")
    assert HfConfig.read(tmp_path / "config.json").integer("a") == 1
