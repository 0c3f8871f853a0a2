"""A client written from the .proto alone works: streaming, health, reflection."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import StartCluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "proto_only_client.py"


async def test_proto_only_client(start_cluster: StartCluster) -> None:
    assert "import quire" not in EXAMPLE.read_text()
    async with start_cluster() as cluster:
        import asyncio

        process = await asyncio.create_subprocess_exec(
            *[sys.executable, str(EXAMPLE), "--target", cluster.router.address],
            *["The list class"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    text = out.decode()
    assert "SERVING" in text
    assert "quire.v1.InferenceService" in text
    assert "grpc.health.v1.Health" in text
