#!/usr/bin/env bash
# Installs the stock clients of tests/compat into build/compat, unless they are there: Python's in an environment of their own,
# since some need other releases of packages than Quire, and Node's where npm is.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/compat
into=build/compat
pinned=$(cat "$here/requirements.txt" "$here/clients/package-lock.json" | sha256sum | cut -d' ' -f1)
[ "$(cat "$into/done" 2>/dev/null)" = "$pinned" ] && exit 0
rm -rf "$into"
mkdir -p "$into/node"
python3 -m venv "$into/venv"
# What is pinned needs no resolver.
"$into/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
if command -v npm >/dev/null; then
  cp "$here/clients/package.json" "$here/clients/package-lock.json" "$into/node/"
  npm ci --prefix "$into/node" --silent --no-audit --no-fund
fi
echo "$pinned" >"$into/done"
