#!/usr/bin/env bash
# Runs the kernel tests, the emulated CUDA kernels' too, against a build with AddressSanitizer and
# UndefinedBehaviorSanitizer, each on one instruction set: csrc/sanitized_tests.sh [pytest options...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/sanitized

compiler=${CXX:-c++}
runtime=$("$compiler" -print-file-name=libasan.so)
if [ ! -e "$runtime" ]; then
  echo "error: $compiler has no AddressSanitizer runtime; install it (Debian: apt-get install libasan8, or libgcc-12-dev)" >&2
  exit 1
fi

csrc/dev_build.sh "$build" -DQUIRE_SANITIZE=ON -DQUIRE_EMULATE_CUDA=ON
kernels=$(find "$PWD/$build/csrc" -maxdepth 1 -name '_C*.so')

# The interpreter is not instrumented, so the runtimes are preloaded; and since torch and the interpreter allocate
# for good, leaks are not looked for. pytest's capture would hide the report of an abort.
LD_PRELOAD="$runtime $("$compiler" -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 \
  QUIRE_KERNELS="$kernels" QUIRE_ONE_ISA=1 \
  .venv/bin/python -m pytest -q -p no:cacheprovider --capture=sys tests/kernels \
  -k "not (cuda and invariance)" "$@"
echo "kernels under ASan and UBSan: ok"
