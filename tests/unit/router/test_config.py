import dataclasses

import pytest

from quire.contract.errors import ConfigError
from router.config import RouterConfig


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model", "/no/such/directory", "/no/such/directory"),
        ("schedulers", ("localhost",), "localhost"),
        ("schedulers", ("localhost:0",), "localhost:0"),
        ("schedulers", ("a:1", "a:1"), "a:1"),
        ("scheduler_dns", ("cells",), "cells"),
        ("scheduler_dns", ("cells:1", "cells:1"), "different addresses"),
        ("dns_interval_s", 0.0, "3600"),
        ("routing_policy", "random", "must be one of prefix-aware, least-loaded, round-robin"),
        ("port", 65536, "65535"),
        ("port", -1, "-1"),
        ("max_prompt_bytes", 0, "got 0"),
        ("max_queued_texts", 0, "got 0"),
        ("tokenizer_threads", 1000, "256"),
        ("connect_timeout_s", -1.0, "-1"),
        ("recovery_timeout_s", 1e9, "86400"),
        ("log_level", "loud", "loud"),
    ],
)
def test_refusal_names_field_and_value(tmp_path, field: str, value: object, words: str) -> None:
    good = RouterConfig(model=str(tmp_path))
    with pytest.raises(ConfigError, match=field) as caught:
        dataclasses.replace(good, **{field: value})
    assert words in caught.value.message


def test_names_alone_are_enough(tmp_path) -> None:
    config = RouterConfig(model=str(tmp_path), schedulers=(), scheduler_dns=("cells:50052",))
    assert config.scheduler_addresses == ()
    assert RouterConfig(model=str(tmp_path)).scheduler_addresses == ("127.0.0.1:50052",)
