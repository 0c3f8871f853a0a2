from pathlib import Path

import pytest

from launch.cluster.config import ClusterConfig, LauncherName
from quire.contract.errors import ConfigError

MODEL = Path(__file__).parent


def test_each_launcher_has_valid_settings() -> None:
    assert ClusterConfig(model=MODEL).launcher == LauncherName.LOCAL
    ClusterConfig(model=MODEL, launcher=LauncherName.STATIC, workers=("a:1", "b:1"))
    named = ("a:1", "b:1")
    ClusterConfig(model=MODEL, launcher=LauncherName.STATIC, workers=named, tensor_parallel_size=2)
    for address in (None, "auto", "10.0.0.1:6379"):
        ClusterConfig(model=MODEL, launcher=LauncherName.RAY, ray_address=address)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model": MODEL / "none"}, ["model", "exists", "none"]),
        ({"tensor_parallel_size": 65}, ["tensor_parallel_size", "64", "65"]),
        ({"workers": ("a:1",)}, ["workers", "static", "a:1", "local"]),
        ({"launcher": LauncherName.STATIC}, ["workers", "static"]),
        (
            {
                "launcher": LauncherName.STATIC,
                "workers": ("a:1", "b:1"),
                "tensor_parallel_size": 3,
            },
            ["tensor_parallel_size", "2", "3"],
        ),
        (
            {"launcher": LauncherName.STATIC, "workers": ("a:1",), "device": "cpu"},
            ["device"],
        ),
        (
            {"launcher": LauncherName.STATIC, "workers": ("a:1",), "num_threads": 2},
            ["num_threads"],
        ),
        ({"ray_address": "auto"}, ["ray_address", "auto", "local"]),
        ({"launcher": LauncherName.RAY, "workers": ("a:1",)}, ["workers", "a:1", "ray"]),
        ({"launcher": LauncherName.RAY, "device": "cuda:1"}, ["device", "cuda:1"]),
        (
            {"launcher": LauncherName.RAY, "ray_address": "ray://a:1"},
            ["ray_address", "ray://a:1"],
        ),
        ({"launcher": LauncherName.RAY, "ray_address": "a"}, ["ray_address", "HOST:PORT"]),
        ({"launcher": LauncherName.RAY, "ray_cpus_per_worker": 0}, ["ray_cpus_per_worker", "0"]),
    ],
)
def test_a_bad_setting_is_named_with_its_value(
    settings: dict[str, object], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterConfig(**{"model": MODEL, **settings})  # type: ignore[arg-type]
    assert all(part in caught.value.message for part in parts), caught.value.message
