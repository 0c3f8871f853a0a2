#!/usr/bin/env bash
# Builds the images of the services: images.sh [TARGET ...], by default all that need no CUDA. Does again only what
# changed. IMAGE_TAG (dev) and IMAGE_REGISTRY say what they are called, BASE_IMAGE what they are built on; CUDAARCHS which
# cards worker-cuda has kernels for, if not those of cmake/cuda.cmake (90a-real: an H100 alone, in a fraction of the time).
set -euo pipefail
cd "$(dirname "$0")/.."

export DOCKER=${DOCKER:-$(test -x /usr/bin/docker && echo /usr/bin/docker || echo docker)}
tag=${IMAGE_TAG:-dev}
prefix=${IMAGE_REGISTRY:+${IMAGE_REGISTRY%/}/}
python=.venv/bin/python
targets=("$@")
[ $# -gt 0 ] || targets=(router scheduler worker)

"$DOCKER" info >/dev/null 2>&1 || {
  echo "error: no Docker engine answers; .ci/run starts one" >&2
  exit 1
}
base=$(tools/base_image.sh)
running=$("$DOCKER" run --rm --network none --entrypoint python3 "$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ours=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$running" = "$ours" ] || {
  echo "error: .venv has Python $ours, which wheels are made for, and $base has $running" >&2
  exit 1
}

# wheel NAME KERNELS: build/wheel/NAME holds Quire's wheel with these kernels (QUIRE_KERNELS of CMakeLists.txt).
wheel() {
  local directory=build/wheel/$1 inputs
  inputs=$( (
    find CMakeLists.txt README.md pyproject.toml cmake protos quire launch router scheduler_svc worker_svc -type f \
      ! -path '*/__pycache__/*' ! -path 'quire/v1/*' ! -path 'quire/facades/*' ! -name '*.so'
    [ ! -f "$2" ] || echo "$2"
  ) | LC_ALL=C sort | xargs sha256sum | sha256sum)
  [ "$(cat "build/wheel/$1.inputs" 2>/dev/null)" != "$inputs" ] || return 0
  rm -rf "$directory"
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$directory" \
    --config-settings=build-dir="build/wheel/$1.build" --config-settings=cmake.define.QUIRE_KERNELS="$2" .
  echo "$inputs" >"build/wheel/$1.inputs"
}

# build TARGET: the image of one service, and the wheels it is built from.
build() {
  local kernels
  "$python" -m tools.lock fetch pip scheduler "$1"
  case $1 in
  worker | ray)
    kernels=$("$python" -c 'from importlib.util import find_spec; print(find_spec("worker_svc._C").origin)')
    wheel kernels "$kernels"
    ;;
  worker-cuda)
    # No GPU is needed to compile for one; nvcc is .venv's where there is no CUDA.
    QUIRE_CUDA=1 csrc/dev_build.sh build/cuda >/dev/null
    kernels=$(find "$PWD/build/cuda/csrc" -maxdepth 1 -name '_C*.so')
    wheel cuda "$kernels"
    ;;
  *) wheel plain none ;;
  esac
  # Version and revision come as labels from here: in the Dockerfile each commit would make all layers anew.
  DOCKER_BUILDKIT=1 "$DOCKER" build --quiet --network none --file deploy/docker/Dockerfile --target "$1" \
    --build-arg BASE_IMAGE="$base" \
    --label org.opencontainers.image.version="$("$python" -c 'import quire; print(quire.__version__)')" \
    --label org.opencontainers.image.revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
    --tag "${prefix}quire-$1:$tag" . >/dev/null
}

for target in "${targets[@]}"; do
  build "$target"
done

printf '%-44s %10s\n' image MB
for target in "${targets[@]}"; do
  name=${prefix}quire-$target:$tag
  printf '%-44s %10d\n' "$name" "$(($("$DOCKER" image inspect --format '{{.Size}}' "$name") / 1000000))"
done
