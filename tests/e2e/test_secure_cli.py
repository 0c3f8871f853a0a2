"""A cluster with certificates and keys, by nothing but what the commands print."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quire.rpc.start import CONFIG_ERROR_STATUS
from tests.e2e.test_cli import quire, serving


def shell(line: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a line as it was printed, with the programs beside this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PATH": path, **environment},
    )


def test_what_serve_prints_reaches_a_cluster_with_certificates_and_keys(tmp_path: Path) -> None:
    certificates, keys = str(tmp_path / "certificates"), str(tmp_path / "keys.jsonl")
    assert quire("certs", certificates).returncode == 0
    added = quire("keys", "add", "me", "--file", keys)
    key = re.search(r"quire-\S+", added.stdout)
    assert key, added
    with serving("--tls-dir", certificates, "--api-keys", keys) as (_, ready):
        lines = re.findall(r"^  ((?:quire|curl|grpcurl|buf) .*)$", ready, re.M)
        generate, curl, _, buf = lines
        assert '"choices"' in shell(curl, QUIRE_API_KEY=key[0]).stdout
        assert "valid API key" in shell(curl, QUIRE_API_KEY="quire-another").stdout
        for line in (generate, buf):
            done = shell(line, QUIRE_API_KEY=key[0])
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip()
            refused = shell(line, QUIRE_API_KEY="quire-another")
            assert refused.returncode != 0
            assert "valid API key" in refused.stderr
        target = shlex.split(generate)[shlex.split(generate).index("--target") + 1]
        in_the_clear = shell(f"quire generate --target {target} x", QUIRE_API_KEY=key[0])
        assert in_the_clear.stderr.startswith("error: does the server want TLS")
        scheduler = re.search(r"scheduler +(\S+)", ready)
        assert scheduler
        not_the_operator = quire("drain", "--tls-dir", f"{certificates}/client", scheduler[1])
        assert "PERMISSION_DENIED" in not_the_operator.stderr
        assert "is for quire-operator" in not_the_operator.stderr
        drained = quire("drain", "--tls-dir", certificates, scheduler[1])
        assert drained.stdout.endswith("is drained: all done\n"), drained


@pytest.mark.parametrize(
    "command", [("serve",), ("router",), ("scheduler",), ("worker", "--device", "cpu")]
)
def test_listening_for_others_in_the_clear_is_refused_unless_asked_for(
    command: tuple[str, ...],
) -> None:
    status = 1 if command == ("serve",) else CONFIG_ERROR_STATUS
    done = quire(*command, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == status
    assert "listening on 0.0.0.0 without TLS" in done.stderr
    assert "--tls-dir" in done.stderr
    assert "--insecure" in done.stderr
    done = quire(*command, "--host", "0.0.0.0", "--port", "0", "--tls-dir", "/nowhere")
    assert done.returncode == status
    assert "error: tls_dir: /nowhere/ca.crt does not exist" in done.stderr
