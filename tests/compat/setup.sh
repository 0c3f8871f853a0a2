#!/usr/bin/env bash
# Installs the stock clients of tests/compat into build/compat: Python's in an environment of their own, since some need
# other releases of packages than Quire; Node's, Ruby's and C++'s where their tools are. What is there already, and made
# from the same files, stays. Prints what each part takes, and what is missing for those it leaves out.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/compat
into=build/compat
root=$PWD
protos=(quire/v1/common.proto quire/v1/inference.proto)

# part NAME FILE...: has make_NAME fill a directory, which it finds itself in, unless it has from these files.
part() {
  local name=$1 began=$SECONDS made
  shift
  made=$({ cat "$@" && declare -f "make_$name"; } | sha256sum | cut -d' ' -f1)
  [ "$(cat "$into/$name/done" 2>/dev/null)" = "$made" ] && return
  rm -rf "${into:?}/$name"
  mkdir -p "$into/$name"
  (cd "$into/$name" && "make_$name")
  echo "$made" >"$into/$name/done"
  echo "compat: $name set up in $((SECONDS - began)) s"
}

# has NAME PACKAGES CHECK...: whether all checks, which are commands, succeed; prints what to install if not.
has() {
  local name=$1 packages=$2 check
  shift 2
  for check in "$@"; do
    $check >/dev/null 2>&1 && continue
    echo "compat: no clients in $name, since '$check' fails: apt-get install $packages"
    rm -rf "${into:?}/$name"
    return 1
  done
}

make_python() {
  python3 -m venv .
  # What is pinned needs no resolver.
  bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r "$root/$here/requirements.txt"
}

make_node() {
  cp "$root/$here"/clients/package*.json .
  npm ci --silent --no-audit --no-fund
}

make_ruby() {
  grpc_tools_ruby_protoc -I "$root/protos" --ruby_out=. --grpc_out=. "${protos[@]}"
}

# With the system's protoc, which may be years older than that of .venv: 3.21 in Debian 12.
make_cpp() {
  local libraries
  protoc -I "$root/protos" --cpp_out=. --grpc_out=. --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "${protos[@]}"
  printf '%s\n' quire/v1/{common,inference}.pb.cc quire/v1/inference.grpc.pb.cc "$root/$here/clients/cpp_grpc.cpp" |
    xargs -P "$(nproc)" -n 1 g++ -std=c++17 -I . -c
  read -ra libraries < <(pkg-config --libs grpc++ protobuf)
  g++ ./*.o -o cpp_grpc "${libraries[@]}"
}

part python "$here/requirements.txt"
if has node npm 'npm --version'; then
  part node "$here/clients/package-lock.json"
fi
if has ruby 'ruby ruby-grpc ruby-grpc-tools' 'ruby -r grpc -e 0' 'command -v grpc_tools_ruby_protoc'; then
  part ruby "${protos[@]/#/protos/}"
fi
if has cpp 'g++ libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc' 'command -v g++' 'command -v protoc' \
  'command -v grpc_cpp_plugin' 'pkg-config --exists grpc++ protobuf'; then
  part cpp "${protos[@]/#/protos/}" "$here/clients/cpp_grpc.cpp"
fi
