#!/usr/bin/env bash
# Every test that needs neither a GPU nor containers, in lanes side by side. The first starts processes and mostly waits
# for them; the others compute on one core each, and get what it leaves idle (nice). What they print comes at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
status=0

computing=(tests/kernels tests/models tests/emu)
# A niced test takes as long as the others let it: this timeout is for one that hangs.
patience=(-o timeout=1200)

models_lane() { .venv/bin/python -m pytest -q "${patience[@]}" tests/kernels tests/models; }

# The emulator of CUDA itself, with bugs planted in kernels, each compiled.
planted_lane() { .venv/bin/python -m pytest -q "${patience[@]}" tests/emu; }

# The kernel tests against builds of the kernels with sanitizers, and in the emulator of CUDA.
sanitized_lane() { csrc/sanitized_tests.sh "${patience[@]}"; }
emulated_lane() { csrc/emulated_tests.sh "${patience[@]}"; }

lanes=(models_lane planted_lane sanitized_lane emulated_lane)
pids=()
for lane in "${lanes[@]}"; do
  # A process group each, which an interrupt can end as a whole.
  set -m
  (
    renice -n 19 -p "$BASHPID" >/dev/null
    "$lane"
  ) >"build/$lane.log" 2>&1 &
  pids+=("$!")
  set +m
done
trap 'for pid in "${pids[@]}"; do kill -- "-$pid" 2>/dev/null; done' EXIT
trap 'exit 130' INT TERM

ignored=()
for folder in "${computing[@]}"; do ignored+=("--ignore=$folder"); done
.venv/bin/python -m pytest -q --durations=15 "${ignored[@]}" || status=1

for i in "${!lanes[@]}"; do
  log="build/${lanes[i]}.log"
  echo "== ${lanes[i]} (meanwhile: $log)"
  wait "${pids[i]}" || status=1
  cat "$log"
done
[ "$status" = 0 ] && echo "all tests: ok" || echo "all tests: FAILED, see above"
exit "$status"
