"""compose.pull.yaml: a model of a hub into a directory of this host, by a confined container."""

import os
import stat
from pathlib import Path

import pytest

from tests.compose.stack import CONTAINER_USER, DEPLOY, IMAGE_TAG, compose_command, run, why_not
from tests.fakes.hub import COMMIT, NAME, Hub, serve_hub

WEIGHTS = bytes(range(256)) * 4096


def pull(directory: Path, hub: Hub, tmp_path: Path) -> str:
    """Run the service as the file's first lines say; return what it prints."""
    command = compose_command()
    assert command is not None, "why_not() was asked"
    # The hub is on this host's loopback.
    override = tmp_path / "host.yaml"
    override.write_text('version: "3.8"\nservices: {pull: {network_mode: host}}\n')
    settings = {
        "COMPOSE_PROJECT_NAME": f"quire-pull-{os.getpid()}",
        "IMAGE_TAG": IMAGE_TAG,
        "QUIRE_PULL_MODEL": NAME,
        "QUIRE_PULL_DIR": str(directory),
        "HF_ENDPOINT": hub.address,
    }
    files = ("-f", str(DEPLOY / "compose.pull.yaml"), "-f", str(override))
    return run(*command, *files, "run", "--rm", "-T", "pull", environment=settings)


def test_a_model_is_pulled_and_only_checked_the_next_time(tmp_path: Path) -> None:
    if (reason := why_not(IMAGE_TAG)) is not None:
        pytest.skip(reason)
    directory = tmp_path / "model"
    directory.mkdir()
    os.chown(directory, CONTAINER_USER, CONTAINER_USER)
    with serve_hub() as hub:
        hub.files = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"# tiny"}
        hub.large = {"model.safetensors"}
        assert pull(directory, hub, tmp_path).split() == [f"{NAME}@{COMMIT}"]
        assert {each.name for each in directory.iterdir()} == {"config.json", "model.safetensors"}
        weights = directory / "model.safetensors"
        assert weights.read_bytes() == WEIGHTS
        assert (weights.stat().st_uid, stat.S_ISREG(weights.stat().st_mode)) == (
            CONTAINER_USER,
            True,
        )
        came = len(hub.requested)
        pull(directory, hub, tmp_path)
        assert len(hub.requested) == came
