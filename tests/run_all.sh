#!/usr/bin/env bash
# Every test. Those of the CUDA kernels in the emulator and those under sanitizers go side by side: each has one thread
# that works. What the emulator's print comes at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
log=build/emulated_tests.log
mkdir -p build
status=0

# Compilers get what the first tests leave idle: many of those wait for processes to start. If a build fails, the script
# that needs it says so below.
(
  export QUIRE_BUILD_ONLY=1
  nice -n 19 csrc/emulated_tests.sh
  nice -n 19 csrc/sanitized_tests.sh
) >build/early_builds.log 2>&1 &
builds=$!
trap 'pkill -P "$builds"; kill "$builds"' INT TERM
.venv/bin/python -m pytest -q --durations=15 || status=1
wait "$builds"

csrc/emulated_tests.sh >"$log" 2>&1 &
emulated=$!
trap 'pkill -P "$emulated"; kill "$emulated"' INT TERM
csrc/sanitized_tests.sh || status=1
echo "waiting for the emulator's tests, of which $log tells"
wait "$emulated" || status=1
cat "$log"
exit "$status"
