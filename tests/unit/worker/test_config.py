import pytest

from quire.contract.errors import ConfigError
from worker_svc.config import Announcement


def test_a_worker_may_be_announced_under_another_name_than_it_listens_on() -> None:
    assert Announcement("scheduler:50052", 3, "worker-3.pods").host == "worker-3.pods"


@pytest.mark.parametrize(
    ("scheduler", "rank", "host", "parts"),
    [
        ("scheduler", 0, "a", ["announce_to", "HOST:PORT", "scheduler"]),
        ("scheduler:0", 0, "a", ["announce_to", "65535", "scheduler:0"]),
        ("scheduler:1", -1, "a", ["rank", "63", "-1"]),
        ("scheduler:1", 64, "a", ["rank", "63", "64"]),
        ("scheduler:1", 0, "0.0.0.0", ["advertise_host", "0.0.0.0"]),
        ("scheduler:1", 0, "[::]", ["advertise_host", "[::]"]),
    ],
)
def test_a_bad_announcement_is_named_with_its_value(
    scheduler: str, rank: int, host: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Announcement(scheduler, rank, host)
    assert all(part in caught.value.message for part in parts), caught.value.message
