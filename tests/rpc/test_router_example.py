"""The example written from the .proto alone, against a router in this process."""

import asyncio
import sys
from pathlib import Path

from tests.rpc.router_setup import running_router

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "proto_only_client.py"


async def run(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_proto_only_client_streams(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        status, out, err = await run("--target", setup.address, "--max-tokens", "16", "list class")
    assert status == 0, err
    assert "health: SERVING" in out
    assert "service: quire.v1.InferenceService" in out
    assert "list classlist class" in out
    assert "finished: 16 tokens, FINISH_REASON_LENGTH" in out


async def test_proto_only_client_shows_the_error(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        status, _, err = await run("--target", setup.address, "--max-tokens", "0", "list")
    assert status == 1
    assert "INVALID_ARGUMENT: max_tokens: must be in [1, 2147483647], got 0" in err
