#!/usr/bin/env bash
# A C++ compiler whose output runs with glibc 2.28 and later, whatever compiles it: PyPI's ziglang. ZIG_PYTHON is an
# interpreter that has it, ZIG_TARGET what to compile for. libc++ is linked in.
exec "$ZIG_PYTHON" -m ziglang c++ -target "$ZIG_TARGET" "${@/#-march=x86-64-v4/-march=x86_64_v4}"
