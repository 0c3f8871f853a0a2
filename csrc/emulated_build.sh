#!/usr/bin/env bash
# Builds the CUDA kernels for the emulator (tests/emu) in build/emulated.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
# One at a time: several suites build the same.
flock build/emulated.lock csrc/dev_build.sh build/emulated -DQUIRE_EMULATE_CUDA=ON -DQUIRE_KERNELS_ONLY=ON
