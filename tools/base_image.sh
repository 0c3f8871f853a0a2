#!/usr/bin/env bash
# Prints the name of the image that ours are built on: Debian 12 with its Python 3.11 and nothing else that is needed.
# That is Docker's python:3.11-slim-bookworm where a registry can be reached; elsewhere one is made from Debian's
# packages, once. BASE_IMAGE names another.
set -euo pipefail

PULLED=python:3.11-slim-bookworm
MADE=quire-base:bookworm
DOCKER=${DOCKER:-docker}

if [ -n "${BASE_IMAGE:-}" ]; then
  echo "$BASE_IMAGE"
  exit
fi
for name in "$MADE" "$PULLED"; do
  if "$DOCKER" image inspect "$name" >/dev/null 2>&1; then
    echo "$name"
    exit
  fi
done
if timeout 300 "$DOCKER" pull --quiet "$PULLED" >/dev/null 2>&1; then
  echo "$PULLED"
  exit
fi

echo "no registry: making $MADE from Debian's packages" >&2
fail() {
  echo "error: $1" >&2
  exit 1
}
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap (or set BASE_IMAGE)"
[ "$(id -u)" = 0 ] || fail "debootstrap needs root (or set BASE_IMAGE)"
directory=$(mktemp -d)
trap 'rm -rf --one-file-system "$directory"' EXIT
root=$directory/root
debootstrap --variant=minbase --include=python3,ca-certificates bookworm "$root" \
  "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$directory/log" 2>&1 ||
  fail "debootstrap: $(tail -n 1 "$directory/log")"
# What Debian's own slim image leaves out: lists and archives of packages, manuals, translations.
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
  "$root"/usr/share/{man,info,locale,lintian,linda,i18n} "$root"/dev/*
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l -delete
find "$root/usr/share/doc" -type d -empty -delete
tar -C "$root" --numeric-owner -cf - . |
  "$DOCKER" import --change 'CMD ["bash"]' --message 'debootstrap --variant=minbase bookworm' - "$MADE" >/dev/null
echo "$MADE"
