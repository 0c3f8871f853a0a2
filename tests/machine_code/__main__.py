"""Compiles every kernel for every architecture and prints the table of docs/gpu-code.md."""

import tempfile
from pathlib import Path

from tests.machine_code import statements
from tests.machine_code.compiled import COMPUTE, compile_all

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        shared = statements.SharedBytes(Path(directory))
    print(*statements.table(statements.rows(compile_all(COMPUTE), shared)), sep="\n")
