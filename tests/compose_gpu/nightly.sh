#!/usr/bin/env bash
# Builds the image quire-worker-cuda, and runs the containers of compose.gpu.yaml and the pods of overlay gpu in it, with
# emulated GPUs: what the lane containers-cuda of `make test-nightly` does. CUDAARCHS=90a-real compiles for one card alone.
set -euo pipefail
cd "$(dirname "$0")/../.."

if docker info >/dev/null 2>&1; then
  make images TARGETS=worker-cuda
  exec make test-compose-gpu WORKER=worker-cuda
fi
# Nothing can be built or run without an engine: each test is skipped with the reason, which the lane reports.
exec .venv/bin/python -m pytest -q -m compose_gpu tests/compose_gpu
