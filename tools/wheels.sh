#!/usr/bin/env bash
# Builds what is uploaded to an index, into build/wheels/dist, and installs it: wheels.sh [PYTHON ...]
#
#   wheels.sh           the sdist; for each CPython of 3.11 to 3.13 that is found, or for those given, a wheel for x86-64 and
#                       glibc 2.28 or later; the kernels once for aarch64 too, compiled only. Each wheel is installed into an
#                       empty environment, as the SDK and with [all]; seconds and megabytes of each extra are printed.
#   wheels.sh --quick   the sdist, and from it the wheel of .venv's Python with the kernels of .venv, which is for this machine
#                       alone; the SDK in an empty environment.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$root/build/wheels
venv_python=$root/.venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 QUIRE_CUDA=0
export PATH="$root/.venv/bin:$PATH"

quick=
if [ "${1:-}" = --quick ]; then
  quick=1
  shift
fi

# Everything that a step prints goes to a log, which is shown if it fails. In the background, since what a condition calls
# runs on after a failure.
step() {
  local text=$1 began=$SECONDS
  shift
  "$@" >"$out/step.log" 2>&1 &
  wait $! || {
    tail -n 30 "$out/step.log" >&2
    echo "error: $text failed" >&2
    exit 1
  }
  echo "== $text: $((SECONDS - began)) s"
}

megabytes() { du -sm "$1" | cut -f 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# The interpreters to build for, one of each version.
find_pythons() {
  local wanted candidate
  for wanted in 3.11 3.12 3.13; do
    for candidate in "$venv_python" "python$wanted" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$wanted".*/bin/python; do
      if [ "$(version_of "$candidate")" = "$wanted" ]; then
        command -v "$candidate"
        break
      fi
    done
  done
}

# What git would commit, and nothing that lies around it.
export_source() {
  rm -rf "$out/source" "$out/dist" "$out/raw"
  mkdir -p "$out/source" "$out/dist" "$out/raw"
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
  done | tar --create --null --files-from - | tar --extract --directory "$out/source"
}

make_sdist() {
  cd "$out/source"
  "$venv_python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$out/dist"
}

# packages PYTHON GROUP: installs build-system.requires and a dependency group of pyproject.toml.
packages() {
  local lines
  mapfile -t lines < <("$venv_python" -c '
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
print(*project["build-system"]["requires"], *project["dependency-groups"][sys.argv[1]], sep="\n")' "$2")
  "$1" -m pip install --quiet "${lines[@]}"
}

# environment NAME PYTHON: an empty virtual environment in build/wheels/NAME.
environment() {
  rm -rf "${out:?}/$1"
  "$2" -m venv "$out/$1"
}

# kernels PYTHON ARCHITECTURE: worker_svc._C in build/wheels/kernels/ARCHITECTURE; another Python compiles its bindings alone.
# No cache of objects has them: it would not see ZIG_TARGET, and take those of another architecture for them.
# pybind11 would see whether link-time optimisation works, and not use it: zig compiles its C++ library anew for each kind.
kernels() {
  local build=$out/kernels/$2 includes
  includes=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  rm -f "$build/CMakeCache.txt" "$build"/csrc/_C*.so
  ZIG_TARGET=$2-linux-gnu.2.28 CXX=$root/tools/zig_cxx.sh cmake -G Ninja -S . -B "$build" -Wno-author \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$2" -DQUIRE_KERNELS_ONLY=ON \
    -DCMAKE_CXX_COMPILER_LAUNCHER= -DCMAKE_MODULE_LINKER_FLAGS=-s -DHAS_FLTO=OFF -DHAS_FLTO_THIN=OFF \
    -DPython_EXECUTABLE="$1" -DPython_INCLUDE_DIR="$includes" -Dpybind11_DIR="$("$1" -m pybind11 --cmakedir)"
  ZIG_TARGET=$2-linux-gnu.2.28 cmake --build "$build" --target _C
}

# make_wheel PYTHON KERNELS FOLDER: the wheel of the sdist with these kernels.
make_wheel() {
  PATH="$(dirname "$1"):$PATH" "$1" -m pip wheel --quiet --no-deps --no-build-isolation \
    --config-settings=cmake.define.QUIRE_KERNELS="$2" --wheel-dir "$3" "$out"/dist/*.tar.gz
}

# What the wheel needs of the system must be what manylinux_2_28 has; prints it.
repair() {
  local auditwheel=$out/tools/bin/auditwheel
  PATH="$out/tools/bin:$PATH" "$auditwheel" repair --plat manylinux_2_28_x86_64 --wheel-dir "$out/dist" "$1"
}

# A program that has the SDK and nothing else.
try_sdk() {
  local found
  cd "$out/dist" # where no module lies beside those installed
  "$1/bin/python" -c '
import quire
print(quire.__version__, quire.Client, quire.AsyncClient, quire.SamplingParams(temperature=0.8))
quire.Client("127.0.0.1:1").close()'
  found=$("$1/bin/python" -m pip list --format freeze | cut -d = -f 1 | grep -Evx 'pip|setuptools' | sort | tr '\n' ' ')
  [ "$found" = "grpcio protobuf quire-serve typing_extensions " ] || {
    echo "error: the SDK brings $found" >&2
    return 1
  }
  if "$1/bin/quire" --help; then
    echo 'error: the SDK brings the command line' >&2
    return 1
  fi
}

# ask ENVIRONMENT ANSWER: a cluster of the embedded model, and what it answers, in a file.
ask() {
  local log=$out/serve.log target='' second cluster
  cd "$out/dist" # where no module lies beside those installed
  : >"$log"
  "$1/bin/quire" serve --port 0 --grpc-port 0 >"$log" 2>&1 &
  cluster=$!
  trap "kill $cluster 2>/dev/null || true; wait $cluster || true" EXIT
  for second in {1..120}; do
    target=$(sed -n 's/^  router  *\([^ ]*\).*/\1/p' "$log")
    if [ -n "$target" ] || ! kill -0 "$cluster"; then break; fi
    sleep 1
  done
  [ -n "$target" ] || {
    cat "$log" >&2
    return 1
  }
  "$1/bin/quire" generate 'The list class' --target "$target" --temperature 0 --max-tokens 24 >"$2"
  [ -s "$2" ]
}

# The answer of an environment must be that of .venv, whose kernels another compiler made.
try_cluster() {
  ask "$1" "$out/answer"
  diff "$out/answer" "$out/expected"
}

# install NAME PYTHON WHEEL EXTRA: an environment with Quire and an extra; prints what it costs.
install() {
  local name=$1 python=$2 wheel=$3 extra=$4 began
  environment "$name" "$python"
  local empty
  empty=$(megabytes "$out/$name")
  began=$SECONDS
  # Of torch the version that was tested, as in tools/bootstrap.sh.
  "$out/$name/bin/python" -m pip install --quiet --no-compile "quire-serve${extra:+[$extra]} @ file://$wheel" \
    -c <(echo 'torch==2.13.0') 2>"$out/step.log" || {
    cat "$out/step.log" >&2
    exit 1
  }
  printf '  %-12s %6d s %6d MB\n' "${extra:-the SDK}" "$((SECONDS - began))" "$(($(megabytes "$out/$name") - empty))"
}

sizes() {
  echo '== build/wheels/dist'
  (cd "$out/dist" && du -k -- * | awk '{ printf "  %-66s %7.1f MB\n", $2, $1 / 1000 }')
}

mkdir -p "$out"
step 'copying the source' export_source
step 'sdist' make_sdist

if [ -n "$quick" ]; then
  built=$("$venv_python" -c 'from importlib.util import find_spec; print(find_spec("worker_svc._C").origin)')
  step 'wheel' make_wheel "$venv_python" "$built" "$out/dist"
  sizes
  install sdk "$venv_python" "$(echo "$out"/dist/*.whl)" ''
  step 'the SDK alone' try_sdk "$out/sdk"
  exit
fi

pythons=("$@")
[ $# -gt 0 ] || mapfile -t pythons < <(find_pythons)
step "the answer of .venv's own kernels" ask "$root/.venv" "$out/expected"
environment tools "$venv_python"
step 'ziglang and auditwheel' packages "$out/tools/bin/python" wheels
export ZIG_PYTHON=$out/tools/bin/python

for python in "${pythons[@]}"; do
  tag=cp$(version_of "$python" | tr -d .)
  environment "build-$tag" "$python"
  builder=$out/build-$tag/bin/python
  step "$tag: what the build needs" packages "$builder" build
  step "$tag: kernels for x86-64" kernels "$builder" x86_64
  step "$tag: wheel" make_wheel "$builder" "$(echo "$out"/kernels/x86_64/csrc/_C*.so)" "$out/raw"
  step "$tag: auditwheel" repair "$(echo "$out"/raw/*-"$tag"-*.whl)"
  "$out/tools/bin/auditwheel" show "$(echo "$out"/dist/*-"$tag"-*.whl)" | grep -v '^$'
done
step 'kernels for aarch64, compiled only' kernels "$builder" aarch64
sizes

extras=(scheduler router simulator traces ray worker)
for python in "${pythons[@]}"; do
  tag=cp$(version_of "$python" | tr -d .)
  wheel=$(echo "$out"/dist/*-"$tag"-*.whl)
  echo "== $tag: installed into an empty environment"
  install "sdk-$tag" "$python" "$wheel" ''
  for extra in "${extras[@]}"; do
    install "extra-$tag" "$python" "$wheel" "$extra"
  done
  extras=() # Costs of another Python are much the same.
  install "all-$tag" "$python" "$wheel" all
  step "$tag: the SDK alone" try_sdk "$out/sdk-$tag"
  step "$tag: quire serve and quire generate" try_cluster "$out/all-$tag"
done
