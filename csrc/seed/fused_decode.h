// A token of each sequence from its projection to the result of attention in one kernel, over the
// caches that the field began with. Nothing is served with it: tests compare with it.
#pragma once

#include <cstdint>

#include "seed/attention_v1.h"

namespace quire::cuda {

struct FusedDecodeParams {
  // Of one version only. `query` is the projection [N, H + 2 Hkv, D], dense heads: queries, keys,
  // values; caches are written at position seq_lens - 1. A sequence of length 0 is padding, whose
  // result is not written.
  SeedAttentionParams attention;
  const void* bias;            // [H + 2 Hkv, D], or null
  const float* cos_sin_cache;  // [P, rotary_dim]: cosines, then sines; null without rotation
  int64_t cos_sin_stride;
  int64_t rotary_dim;
  bool is_neox;
};

// Runs on the calling thread's stream.
void fused_decode(const FusedDecodeParams& p);

}  // namespace quire::cuda
