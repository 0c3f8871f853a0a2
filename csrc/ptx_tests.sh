#!/usr/bin/env bash
# Runs the kernel tests on the PTX that nvcc makes of the CUDA kernels, in the interpreter of tests/ptx, and leaves out
# barriers that must be missed: csrc/ptx_tests.sh [pytest options...]
# ARCHITECTURE is that of the PTX (90a, of an H100); DEVICES are those of the emulator whose depths of pipelines run.
# QUIRE_PTX_ALL=1 asks for a run of every kernel, or an error.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/emulated
python=.venv/bin/python
architecture=${ARCHITECTURE:-90a}
read -ra devices <<<"${DEVICES:-small}"

if ! "$python" -c 'import sys; from tests.nvcc import find_nvcc; sys.exit(find_nvcc() is None)'; then
  echo "error: nvcc is not installed, 'make setup' installs it" >&2
  exit 1
fi
csrc/emulated_build.sh
QUIRE_KERNELS=$(find "$PWD/$build/csrc" -maxdepth 1 -name '_C*.so')
QUIRE_PTX=$("$python" -m tests.ptx.compile "$architecture")
QUIRE_PTX_REPORT=build/ptx/reports/$architecture
export QUIRE_KERNELS QUIRE_PTX QUIRE_PTX_REPORT
rm -rf "$QUIRE_PTX_REPORT"

run() { "$python" -m pytest -q -p no:cacheprovider -p tests.ptx.plugin "$@"; }
run tests/kernels tests/ptx \
  -k "cuda_ or every_instruction_set or seed_attention or test_interpreter or test_products or test_mutants or test_source_mutants or test_figures" "$@"
for device in "${devices[@]:1}"; do
  QUIRE_EMULATED_DEVICE=$device run tests/ptx/test_instances.py
done
"$python" -m tests.ptx.coverage "$QUIRE_PTX_REPORT" --table || [ -z "${QUIRE_PTX_ALL:-}" ]
echo "PTX of compute_$architecture in the interpreter: ok"
