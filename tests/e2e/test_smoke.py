"""deploy/smoke.sh, as an operator runs it: it passes where all is well, and nowhere else."""

import asyncio
import os
import socket
from pathlib import Path

from typer.testing import CliRunner

from quire.cli.cluster import Cluster, ClusterConfig, embedded_model
from quire.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
CHECKS = 8


async def smoke(target: str, **settings: str) -> tuple[int, str]:
    """Exit status and output of the script."""
    process = await asyncio.create_subprocess_exec(
        *[str(ROOT / "deploy/smoke.sh"), target],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/tmp"), **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_it_passes_with_its_key_and_fails_without(tmp_path: Path) -> None:
    keys = tmp_path / "keys.jsonl"
    made = CliRunner().invoke(app, ["keys", "add", "smoke", "--file", str(keys)])
    key = made.stdout.strip().split()[-1]
    cluster = Cluster(
        ClusterConfig(
            model=embedded_model(),
            port=0,
            scheduler_args=("--kv-cache-gib", "0.03125"),
            api_keys=keys,
        )
    )
    await cluster.start()
    try:
        target = cluster.router.address
        status, output = await smoke(target, API_KEY=key)
        assert (status, output.count("\nok ")) == (0, CHECKS), output
        assert key not in output

        # Reflection and health are open to all, nothing else is.
        status, output = await smoke(target)
        assert (status, output.count("\nok "), output.count("\nfailed ")) == (1, 3, CHECKS - 3)
    finally:
        await cluster.stop()


async def test_it_fails_where_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        status, output = await smoke(f"127.0.0.1:{unused.getsockname()[1]}")
    assert (status, output.count("\nfailed ")) == (1, CHECKS), output
