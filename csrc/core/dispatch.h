// One macro per axis that kernels are compiled for. A value without a case is a bug of the checks
// in ops/; it is reported as one.
#pragma once

#include "core/tensor.h"

namespace quire {

[[noreturn]] void dispatch_failed(const char* axis, int value);

}  // namespace quire

// Runs the statements with `T` bound to the activation type. float, bf16 and f16 are looked up
// where the macro is used, so every ISA binds its own.
#define QUIRE_DISPATCH_DTYPE(dtype, T, ...)                       \
  switch (dtype) {                                                \
    case ::quire::DType::kFloat32: {                              \
      using T = float;                                            \
      __VA_ARGS__;                                                \
      break;                                                      \
    }                                                             \
    case ::quire::DType::kBFloat16: {                             \
      using T = bf16;                                             \
      __VA_ARGS__;                                                \
      break;                                                      \
    }                                                             \
    case ::quire::DType::kFloat16: {                              \
      using T = f16;                                              \
      __VA_ARGS__;                                                \
      break;                                                      \
    }                                                             \
    default:                                                      \
      ::quire::dispatch_failed("dtype", static_cast<int>(dtype)); \
  }

// Runs the statements with `Cached` bound to the element type of a cache: that of the activations,
// `T`, or `Quantised`, which has the name `quantised_dtype`.
#define QUIRE_DISPATCH_CACHE(cache_dtype, dtype, T, quantised_dtype, Quantised, Cached, ...) \
  if ((cache_dtype) == (dtype)) {                                                            \
    using Cached = T;                                                                        \
    __VA_ARGS__;                                                                             \
  } else if ((cache_dtype) == (quantised_dtype)) {                                           \
    using Cached = Quantised;                                                                \
    __VA_ARGS__;                                                                             \
  } else {                                                                                   \
    ::quire::dispatch_failed("cache dtype", static_cast<int>(cache_dtype));                  \
  }

// Runs the statements with `M` bound to the constant 1, 2, 3 or 4: the rows a register tile holds.
#define QUIRE_DISPATCH_ROWS(rows, M, ...)                       \
  switch (rows) {                                               \
    case 1: {                                                   \
      constexpr int M = 1;                                      \
      __VA_ARGS__;                                              \
      break;                                                    \
    }                                                           \
    case 2: {                                                   \
      constexpr int M = 2;                                      \
      __VA_ARGS__;                                              \
      break;                                                    \
    }                                                           \
    case 3: {                                                   \
      constexpr int M = 3;                                      \
      __VA_ARGS__;                                              \
      break;                                                    \
    }                                                           \
    case 4: {                                                   \
      constexpr int M = 4;                                      \
      __VA_ARGS__;                                              \
      break;                                                    \
    }                                                           \
    default:                                                    \
      ::quire::dispatch_failed("rows", static_cast<int>(rows)); \
  }
