#!/usr/bin/env bash
# Builds worker_svc._C in place, for work on the kernels: csrc/dev_build.sh [build folder] [cmake options...]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
build=${1:-build/dev}
mkdir -p "$(dirname "$build")"
shift || true
bin=$root/.venv/bin
export PATH="$bin:$PATH"

cmake -S . -B "$build" -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$bin/python" \
  -Dpybind11_DIR="$("$bin/python" -m pybind11 --cmakedir)" "$@" >"$build.log" 2>&1 ||
  { cat "$build.log" >&2; exit 1; }
cmake --build "$build" --target _C

# Rename, not overwrite: a running process keeps the module it has mapped.
if [ "$build" = build/dev ]; then
  for module in "$build"/csrc/_C*.so; do
    cp "$module" "worker_svc/.$(basename "$module").new"
    mv "worker_svc/.$(basename "$module").new" "worker_svc/$(basename "$module")"
  done
fi
