"""The files that cannot run here, as compose itself reads them."""

from typing import Any

import pytest
import yaml

from tests.compose.stack import DEPLOY, compose_command, run


def config(*files: str) -> dict[str, dict[str, Any]]:
    """Return the services that compose makes of files."""
    command = compose_command()
    if command is None:
        pytest.skip("compose is missing (apt-get install docker-compose)")
    named = [part for name in files for part in ("-f", str(DEPLOY / name))]
    services: dict[str, dict[str, Any]] = yaml.safe_load(run(*command, *named, "config"))[
        "services"
    ]
    for service in services.values():
        # Written differently once files are merged, which means nothing.
        service["volumes"].sort()
        service.get("ports", []).sort()
        service["networks"] = {name: each or {} for name, each in service["networks"].items()}
    return services


def test_workers_of_the_gpu_file_are_as_confined_as_the_others() -> None:
    plain, with_gpus = config("compose.yaml"), config("compose.yaml", "compose.gpu.yaml")
    assert plain.keys() == with_gpus.keys()
    for name, service in with_gpus.items():
        changed = {key for key in service | plain[name] if service.get(key) != plain[name].get(key)}
        if name.startswith("worker"):
            assert changed == {"image", "deploy", "shm_size", "cpus", "mem_limit"}
            assert "capabilities" in str(service["deploy"])
        else:
            assert not changed


def test_a_cell_that_joins_differs_by_one_network() -> None:
    plain, joining = config("compose.yaml"), config("compose.yaml", "compose.join.yaml")
    networks = joining["scheduler"].pop("networks")
    before = plain["scheduler"].pop("networks")
    assert joining == plain
    assert networks.keys() - before.keys() == {"routers"}
    assert networks["routers"]["aliases"] == ["cells"]
