"""Lines of a batch that are no requests."""

from pathlib import Path

import pytest

from launch.batch.files import read_requests
from quire.contract.errors import ConfigError

LINE = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"top_p": %s}}'


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity"])
def test_a_number_that_is_none_is_refused_by_its_line(tmp_path: Path, number: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(LINE % "0.5")
    assert len(read_requests(path, seed=1)) == 1
    path.write_text(LINE % number)
    with pytest.raises(ConfigError, match=r"line 1: must be a JSON object, got another text"):
        read_requests(path, seed=1)
