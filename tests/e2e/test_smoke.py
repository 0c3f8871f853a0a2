"""deploy/smoke.sh, as an operator runs it: it passes where all is well, and nowhere else."""

import asyncio
import os
import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.cli.main import app
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model

ROOT = Path(__file__).resolve().parents[2]
CHECKS = 8


def quire(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def fetch_grpcurl() -> None:
    if (os.uname().sysname, os.uname().machine) != ("Linux", "x86_64"):
        pytest.skip("the pinned grpcurl runs on Linux x86_64 only")
    subprocess.run([ROOT / "tools/grpcurl.sh"], check=True)


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


@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
async def test_it_passes_with_what_the_router_asks_for_and_fails_without(
    tls: bool, tmp_path: Path
) -> None:
    keys, certificates = tmp_path / "keys.jsonl", tmp_path / "certs"
    key = quire("keys", "add", "smoke", "--file", str(keys)).split()[-1]
    if tls:
        quire("certs", str(certificates))
    fetch_grpcurl()
    certificate = {"TLS_DIR": str(certificates / "client")} if tls else {}
    cluster = Cluster(
        ClusterConfig(
            model=embedded_model(),
            port=None,
            grpc_port=0,
            kv_cache_gib=0.03125,
            api_keys=keys,
            tls_dir=str(certificates) if tls else None,
        )
    )
    await cluster.start()
    try:
        target = cluster.router.address
        for tool in ("grpcurl", "buf"):
            settings = {"SMOKE_TOOL": tool, **certificate}
            status, output = await smoke(target, API_KEY=key, **settings)
            assert (status, output.count("\nok ")) == (0, CHECKS), output
            assert output.count(f"$ {tool} ") == CHECKS
            assert key not in output

            # Reflection and health are open to all, nothing else is.
            status, output = await smoke(target, **settings)
            assert (status, output.count("\nok "), output.count("\nfailed ")) == (1, 3, CHECKS - 3)

            if tls:  # no certificate, and one that no client has
                for wrong in ({}, {"TLS_DIR": str(certificates / "worker")}):
                    status, output = await smoke(target, API_KEY=key, SMOKE_TOOL=tool, **wrong)
                    assert (status, "ok      generates" in output) == (1, False), output
    finally:
        await cluster.stop()


@pytest.mark.parametrize("tool", ["grpcurl", "buf"])
async def test_it_fails_where_nothing_listens(tool: str) -> None:
    fetch_grpcurl()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        status, output = await smoke(f"127.0.0.1:{unused.getsockname()[1]}", SMOKE_TOOL=tool)
    assert (status, output.count("\nfailed ")) == (1, CHECKS), output
