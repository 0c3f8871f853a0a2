#!/usr/bin/env bash
# Runs the kernel tests of the CUDA kernels in the emulator (tests/emu), each in one of its orders of turns or, with
# QUIRE_ALL_ORDERS=1, in all of them, and the worker on an emulated GPU: csrc/emulated_tests.sh [pytest options...]
# CARD is one of the emulator's (A100, L4, 4090, H100, B200): the kernels' tests run as on that, and no others.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/emulated

csrc/emulated_build.sh
kernels=$(find "$PWD/$build/csrc" -maxdepth 1 -name '_C*.so')
export QUIRE_KERNELS="$kernels"
if [ -n "${CARD:-}" ]; then
  QUIRE_EMULATED_DEVICE=$CARD .venv/bin/python -m pytest -q -p no:cacheprovider tests/kernels \
    -k "cuda_ or every_instruction_set or seed_attention" "$@"
  echo "CUDA kernels in the emulator, as on $CARD: ok"
  exit
fi
.venv/bin/python -m pytest -q -p no:cacheprovider tests/kernels tests/emu/test_gpu_*.py \
  -k "cuda_ or every_instruction_set or seed_attention or test_gpu_" "$@"
# Once more as on a device with less shared memory, where pipelines are shorter, and without products of warpgroups.
QUIRE_EMULATED_DEVICE=L4 .venv/bin/python -m pytest -q -p no:cacheprovider tests/kernels/test_attention*.py \
  tests/kernels/test_linear.py -k cuda_
echo "CUDA kernels in the emulator: ok"
