#!/usr/bin/env bash
# Every test, in two lanes that take about as long: services and models, which wait a lot, beside kernels, whose tests
# run a second time in the emulator and a third time under sanitizers. What the second lane prints comes at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
log=build/kernel_tests.log
mkdir -p build

test_kernels() {
  local status=0
  "$python" -m pytest -q -p no:cacheprovider tests/kernels || status=1
  csrc/emulated_tests.sh || status=1
  csrc/sanitized_tests.sh || status=1
  return "$status"
}

test_kernels >"$log" 2>&1 &
kernels=$!
trap 'pkill -P "$kernels"; kill "$kernels"' INT TERM
status=0
"$python" -m pytest -q --ignore=tests/kernels || status=1
echo "waiting for the kernels' tests, of which $log tells"
wait "$kernels" || status=1
cat "$log"
exit "$status"
