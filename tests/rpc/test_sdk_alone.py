"""The SDK where nothing is installed but grpcio and protobuf."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from quire.rpc import Role, TlsFiles
from tests.rpc.router_setup import PROMPT, echoed, running_router, text_of
from tests.rpc.secure_server import make_certificates, secure_server

# What a program has to import: all else that is installed here is hidden from it.
ALONE = """
import importlib.abc, sys

# Quire's own, what it needs, and what grpcio imports.
ALLOWED = {"quire", "launch", "router", "grpc", "google", "typing_extensions"}
ALLOWED |= sys.stdlib_module_names

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        parts = name.split(".")
        is_google = parts[0] == "google" and len(parts) > 1
        if parts[0] not in ALLOWED or is_google and parts[1] != "protobuf":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in [each for each in sys.modules if each.startswith("google.")]:
    del sys.modules[name]
sys.meta_path.insert(0, Hidden())
"""
CALLS = """
import asyncio, quire
from quire import AsyncClient, Client, SamplingParams
from quire.contract import errors

target, prompt = sys.argv[1:]
params = SamplingParams(max_tokens=5, seed=3)
with Client(target, resume_timeout=0) as client:
    print(client.generate(prompt, params).text)
    try:
        client.generate(prompt, params, model="gpt-17")
    except errors.ModelNotFoundError as error:
        print(type(error).__name__)
    try:
        client.generate("", params)
    except errors.InvalidRequestError as error:
        print(error.field)

async def main():
    async with AsyncClient(target, resume_timeout=0) as client:
        print((await client.generate(prompt, params)).text)

asyncio.run(main())
try:
    quire.LLM()
except errors.ConfigError as error:
    print(error.message)
"""
TLS_CALLS = """
from quire import Client
from quire.contract import errors

target, directory, foreign = sys.argv[1:]
with Client(target, tls_dir=directory) as client:
    print(client.list_models())
with Client(target, tls_dir=foreign) as client:
    try:
        client.list_models()
    except errors.UnavailableError as error:
        print(error.message)
"""


async def run_alone(program: str, *arguments: str) -> list[str]:
    """Return the lines that a program printed."""
    command = [sys.executable, "-c", ALONE + program, *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def test_the_sdk_needs_grpcio_and_protobuf_alone(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup:
        lines = await run_alone(CALLS, setup.address, PROMPT)
    text = text_of(echoed(5))
    *answers, missing = lines
    assert answers == [text, "ModelNotFoundError", "prompt", text]
    assert missing.startswith("LLM: needs packages that are not installed (")
    assert missing.endswith("pip install 'quire-serve[all]'")


async def test_the_sdk_alone_speaks_tls(tmp_path: Path) -> None:
    ours, foreign = (make_certificates(tmp_path / name).path for name in ("ours", "foreign"))
    async with secure_server(TlsFiles(ours, Role.ROUTER)) as (address, _):
        models, refusal = await run_alone(TLS_CALLS, address, str(ours), str(foreign))
    assert models == "[]"
    assert "no authority in ca.crt vouches" in refusal


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ca.crt", "nothing", "holds no PEM certificate"),
        ("tls.key", "nothing", "does not match the certificate in tls.crt"),
    ],
)
async def test_the_sdk_alone_names_a_file_that_it_cannot_use(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    directory = make_certificates(tmp_path / "ours").path / Role.CLIENT.directory
    (directory / name).write_text(content)
    program = """
from quire import Client
from quire.contract import errors
try:
    Client("127.0.0.1:1", tls_dir=sys.argv[1])
except errors.ConfigError as error:
    print(error.message)
"""
    (line,) = await run_alone(program, str(directory))
    assert line == f"tls_dir: {directory / name} {message}"
