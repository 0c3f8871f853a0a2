"""How often a Ray of our own is started. Ray itself does not run."""

import threading
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.config import ClusterConfig, LauncherName
from launch.launchers.ray_launcher import RayLauncher
from launch.launchers.ray_start import MAX_ATTEMPTS
from quire.contract.errors import UnavailableError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'quire-serve[ray]'")

TOO_SLOW = (
    "The current node timed out during startup. This could happen because some of the raylet "
    "failed to startup or the GCS has become overloaded."
)


class Started:
    """A launcher, what it said, and the threads in which it started a Ray that fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: list[Exception]) -> None:
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setattr(ray, "init", self._init)
        self.said: list[str] = []
        self.threads: list[threading.Thread] = []
        self._errors = errors
        config = ClusterConfig(model=Path(__file__).parent, launcher=LauncherName.RAY)
        self.launcher = RayLauncher(config, self.said.append)

    def _init(self, **_: Any) -> None:
        self.threads.append(threading.current_thread())
        if self._errors:
            raise self._errors.pop(0)


async def test_a_ray_that_is_too_slow_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, [Exception(TOO_SLOW)] * (MAX_ATTEMPTS - 1))
    await started.launcher._connect_patiently()
    assert started.said == ["Ray took too long to start: starting it again"] * (MAX_ATTEMPTS - 1)
    *failed, last = started.threads
    for thread in failed:
        thread.join(20)  # Ray's processes die with it
        assert not thread.is_alive()
    assert last.is_alive()


async def test_a_ray_that_stays_too_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, [Exception(TOO_SLOW)] * (MAX_ATTEMPTS + 1))
    with pytest.raises(UnavailableError, match=r"in 3 attempts: The current node timed out"):
        await started.launcher._connect_patiently()
    assert len(started.threads) == MAX_ATTEMPTS


async def test_no_other_error_is_met_with_a_new_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, [RuntimeError("no room in /dev/shm")])
    with pytest.raises(UnavailableError, match="no room"):
        await started.launcher._connect_patiently()
    assert len(started.threads) == 1
    assert not started.said
