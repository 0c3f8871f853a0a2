#!/usr/bin/env bash
# Makes .venv and installs Quire into it, editable, with what tests and lint need. Idempotent.
# Prerequisites: Python >= 3.11 with headers, and a C++17 compiler; CMake and ninja come as build requirements.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
}

python=$(find_python)
[ -n "$python" ] || fail "Python 3.11 or newer is missing: apt-get install python3 python3-venv python3-dev (or set PYTHON)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "Python's venv module is missing: apt-get install python3-venv"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
  fail "Python's C headers are missing: apt-get install python3-dev"
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null 2>&1 || fail "a C++17 compiler is missing: apt-get install g++"
echo 'int main() { if constexpr (true) return 0; }' |
  "$compiler" -std=c++17 -x c++ -fsyntax-only - 2>/dev/null ||
  fail "$compiler cannot compile C++17: apt-get install g++"

export PIP_DISABLE_PIP_VERSION_CHECK=1
[ -x .venv/bin/python ] || {
  echo "== making .venv"
  "$python" -m venv .venv
}
pip() { .venv/bin/python -m pip --quiet "$@"; }

echo "== installing (torch first, so that nothing else chooses its build)"
pip install --upgrade 'pip>=25.1'
.venv/bin/python -c 'import torch' 2>/dev/null || pip install 'torch==2.13.0'
pip install --group dev
echo "== building the kernels and the protobuf stubs"
pip install --editable .
touch .venv/.ready
