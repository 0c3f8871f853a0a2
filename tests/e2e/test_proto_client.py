"""A client written from the .proto alone works: streaming, health, reflection."""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import SharedClusters

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "proto_only_client.py"


async def test_proto_only_client(shared_clusters: SharedClusters) -> None:
    assert "import quire" not in EXAMPLE.read_text()
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(EXAMPLE), "--target", shared_clusters.get().router.address],
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
