// What the parameters of kernels consist of: raw pointers, sizes, strides in elements, element
// types. Each operation has a struct of them, in ops/<family>.h beside the checks of its arguments,
// so kernels check nothing again. Only plain data lives here: this is compiled into every
// instruction set's translation unit, and the linker could merge a shared inline function across
// them.
#pragma once

#include <cstdint>

#include "core/tensor.h"

// On the declaration of a function: without a definition the module does not link.
#define QUIRE_MUST_BE_DEFINED __attribute__((visibility("hidden")))

namespace quire {

// Of heads that are cached as they are, those of latent attention among them, and of quantised
// ones.
constexpr int64_t kMaxHeadSize = 576;
constexpr int64_t kMaxQuantisedHeadSize = 256;

// Behind the elements of a row of an int8 cache: the float32 that they are multiples of.
constexpr int64_t kRowScaleBytes = 4;

// [B, Hkv, BS, D], of int8 [B, Hkv, BS, D + kRowScaleBytes]; any block, head and token stride, unit
// stride along a row.
struct CacheView {
  void* data;
  int64_t block_stride;
  int64_t head_stride;
  int64_t token_stride;
};

// Rows [T, H, D]; unit stride along D.
struct RowsView {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
};

class AttentionPlan;

#define QUIRE_OP(name, Params, ...) struct Params;
#include "ops.def"

}  // namespace quire
