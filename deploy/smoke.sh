#!/usr/bin/env bash
# smoke.sh HOST:PORT: check that a router is there, answers, and refuses what it should. Exits with 0 if so.
#   TLS_DIR      directory of ca.crt, tls.crt and tls.key, for a router with TLS; ca.crt alone where clients need none
#   SERVER_NAME  what the router's certificate is checked for (quire-router)
#   API_KEY      for a router with API keys
#   SMOKE_TOOL   grpcurl or buf; without it grpcurl where that is installed, else `buf curl`
# It calls what any client can.
set -uo pipefail

target=${1:?usage: smoke.sh HOST:PORT}
tls=${TLS_DIR:-}
name=${SERVER_NAME:-quire-router}
export API_KEY=${API_KEY:-${QUIRE_API_KEY:-}}
health=grpc.health.v1.Health/Check
service=quire.v1.InferenceService
failed=0

# first_of COMMAND...: the first of them that is installed.
first_of() {
  local candidate
  for candidate in "$@"; do
    command -v "$candidate" && return
  done
}
here=$(dirname "$0")/..
grpcurl=$(first_of grpcurl "$here/build/bin/grpcurl")
buf=$(first_of buf "$here/.venv/bin/buf")
case ${SMOKE_TOOL:=$([ -n "$grpcurl" ] && echo grpcurl || echo buf)} in
grpcurl | buf) ;;
*)
  echo "error: SMOKE_TOOL: must be grpcurl or buf, got $SMOKE_TOOL" >&2
  exit 2
  ;;
esac
[ -n "${!SMOKE_TOOL}" ] || {
  echo "error: $SMOKE_TOOL is not installed; tools/grpcurl.sh fetches grpcurl, make setup installs buf" >&2
  exit 2
}

# Each sets `line`, the command to run.
if [ "$SMOKE_TOOL" = grpcurl ]; then
  tool=("$grpcurl")
  if [ -n "$tls" ]; then
    tool+=(-cacert "$tls/ca.crt" -authority "$name")
    [ ! -e "$tls/tls.key" ] || tool+=(-cert "$tls/tls.crt" -key "$tls/tls.key")
  else
    tool+=(-plaintext)
  fi
  list() { line=("${tool[@]}" "$target" list); }
  describe() { line=("${tool[@]}" "$target" describe "$service"); }
  call() { line=("${tool[@]}" -d "$2" "$target" "$1"); }
  # The key goes through the environment, since all users of a machine can see command lines.
  run() {
    if [ -n "$API_KEY" ]; then
      timeout 60 "$1" -expand-headers -H 'authorization: Bearer ${API_KEY}' "${@:2}"
    else
      timeout 60 "$@"
    fi
  }
else
  url=http://$target
  tool=("$buf" curl --protocol grpc)
  if [ -n "$tls" ]; then
    url=https://$target
    tool+=(--cacert "$tls/ca.crt" --servername "$name")
    [ ! -e "$tls/tls.key" ] || tool+=(--cert "$tls/tls.crt" --key "$tls/tls.key")
  else
    tool+=(--http2-prior-knowledge)
  fi
  list() { line=("${tool[@]}" --list-services "$url"); }
  describe() { line=("${tool[@]}" --list-methods "$url"); }
  call() { line=("${tool[@]}" -d "$2" "$url/$1"); }
  # The key goes through a pipe, for the same reason.
  headers() { [ -z "$API_KEY" ] || printf 'authorization: Bearer %s\n' "$API_KEY"; }
  run() { timeout 60 "$@" --connect-timeout 5 --header @<(headers); }
fi

# show COMMAND...: as it would be typed.
show() {
  local word
  printf '$ %s' "${1##*/}"
  for word in "${@:2}"; do
    case $word in
    *[\ \{]*) printf " '%s'" "$word" ;;
    *) printf ' %s' "$word" ;;
    esac
  done
  echo
}

# check WHAT PATTERN COMMAND...: the output of the line that the command sets, errors included, must match.
check() {
  local what=$1 pattern=$2 output
  "${@:3}"
  show "${line[@]}"
  output=$(run "${line[@]}" 2>&1)
  if grep -Eq -- "$pattern" <<<"$output"; then
    printf '%-8s%s\n' ok "$what"
  else
    failed=1
    printf '%-8s%s: expected %s, got\n%s\n' failed "$what" "$pattern" "$(sed 's/^/        /' <<<"${output:-nothing}")"
  fi
}

[ -z "$API_KEY" ] || echo "with -H 'authorization: Bearer \$API_KEY':"
check "lists its services" "^$service\$" list
check "describes them" "Generate" describe
check "is healthy" '"SERVING"' call "$health" '{}'
check "serves a model" '"name"' call "$service/ListModels" '{}'
check "counts tokens" '"token_?[iI]ds"' call "$service/Tokenize" '{"text": "The list class"}'
check "generates" '"finished"' call "$service/Generate" '{"text": "The list class", "samplingParams": {"maxTokens": 8}}'
check "refuses what is out of bounds, and says what" 'temperature' \
  call "$service/Generate" '{"text": "x", "samplingParams": {"temperature": -1}}'
check "knows no other model" '[nN]ot_?[fF]ound' call "$service/Generate" '{"text": "x", "model": "no-such-model"}'
exit "$failed"
