#!/usr/bin/env bash
# Builds worker_svc._C and the stubs of protos/ in place, for work on them: csrc/dev_build.sh [build folder] [cmake options...]
# PYTHON names an interpreter other than that of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
build=${1:-build/dev}
mkdir -p "$(dirname "$build")"
shift || true
python=${PYTHON:-$root/.venv/bin/python}
export PATH="$(dirname "$python"):$PATH"

# Architectures of an earlier build in this folder, which CMake keeps, would stand before CUDAARCHS and its default.
cmake -S . -B "$build" -G Ninja -Wno-author -UCMAKE_CUDA_ARCHITECTURES -DCMAKE_BUILD_TYPE=Release -DSKBUILD_STATE=editable \
  -DPython_EXECUTABLE="$python" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" "$@" >"$build.log" 2>&1 ||
  { cat "$build.log" >&2; exit 1; }
cmake --build "$build" --target _C

# Where Python looks: beside the sources, or where an editable install has put its copy.
place() {
  for module in "$build"/csrc/_C*.so; do
    # Renamed, not overwritten: a running process keeps the module that it has mapped.
    cp "$module" "$1/.$(basename "$module").new"
    mv "$1/.$(basename "$module").new" "$1/$(basename "$module")"
  done
}
if [ "$build" = build/dev ]; then
  place worker_svc
  cmake --build "$build" --target quire_stub quire_protos
  installed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/worker_svc
  if [ -d "$installed" ]; then place "$installed"; fi
fi
