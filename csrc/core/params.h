// What a kernel is given: raw pointers, sizes, strides in elements, element types. Everything here
// was checked in ops/, so kernels check nothing again. Only plain data lives in this header: it
// is compiled into every ISA's translation unit, and a shared inline function could be merged
// across them by the linker.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace quire {

constexpr int64_t kMaxHeadSize = 256;

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

// reshape_and_cache and its inverse, gather_cached_kv.
struct CacheIoParams {
  RowsView key;    // [T, Hkv, D]
  RowsView value;  // [T, Hkv, D]
  CacheView key_cache;
  CacheView value_cache;
  const int64_t* slot_mapping;  // [T], block * block_size + offset; negative rows are padding
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t block_size;
  const float* key_scales;    // [Hkv], of float8 caches; null where all are 1
  const float* value_scales;  // [Hkv]
  DType dtype;
  DType cache_dtype;  // the same, or a quantised one
};

struct CopyBlocksParams {
  char* const* caches;           // [num_caches], key and value caches of every layer
  const int64_t* block_bytes;    // [num_caches], bytes of one block; blocks lie back to back
  const int64_t* block_mapping;  // [P, 2] (source, destination), applied in order
  int64_t num_caches;
  int64_t num_pairs;
};

struct SwapBlocksParams {
  const char* src;
  char* dst;
  int64_t block_bytes;
  const int64_t* block_mapping;  // [P, 2] (source block, destination block)
  int64_t num_pairs;
};

class AttentionPlan;

struct PagedAttentionParams {
  RowsView out;    // [T, H, D]
  RowsView query;  // [T, H, D]
  CacheView key_cache;
  CacheView value_cache;
  const int32_t* block_tables;     // [N, MB]
  const int32_t* seq_lens;         // [N], keys and values including those of this chunk
  const int32_t* query_start_loc;  // [N + 1]
  const float* alibi_slopes;       // [H], or null
  const float* key_scales;         // [Hkv], of float8 caches; null where all are 1
  const float* value_scales;       // [Hkv]
  int64_t block_table_stride;
  int64_t num_tokens;  // T; rows from query_start_loc[N] on are left alone
  int64_t num_seqs;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t block_size;
  int64_t sliding_window;  // keys with q_pos - k_pos < window; INT64_MAX without one
  float scale;
  float soft_cap;             // 0 without one
  const AttentionPlan* plan;  // of the same backend and step; or null
  DType dtype;
  DType cache_dtype;  // the same, or a quantised one
};

// Rows of n elements that form a [outer, inner, n] view (inner is 1 for a matrix).
struct NormRows {
  void* data;
  int64_t outer_stride;
  int64_t inner_stride;
};

struct NormParams {
  NormRows out;
  NormRows x;
  NormRows residual;  // fused_add_rms_norm only
  const void* weight;
  const void* bias;  // layer_norm only; null without one
  int64_t outer;
  int64_t inner;
  int64_t n;
  float eps;
  DType dtype;
};

struct RotaryParams {
  RowsView query;  // [T, H, D]
  RowsView key;    // [T, Hkv, D]
  const int64_t* positions;
  const float* cos_sin_cache;  // [P, rotary_dim]: cosines, then sines
  int64_t cos_sin_stride;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t rotary_dim;
  bool is_neox;
  DType dtype;
};

// The rotated keys go to the cache alone: `rotary.key` stays as it is, and so does `cache.key`,
// which is the same. Rows from cache.num_tokens on have no slot.
struct RotaryCacheParams {
  RotaryParams rotary;
  CacheIoParams cache;
};

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kQuickGelu };

struct ActivationParams {
  void* out;
  const void* x;
  int64_t out_stride;
  int64_t x_stride;
  int64_t rows;
  int64_t n;   // columns of out
  bool gated;  // x has 2n columns and out = act(x[:n]) * x[n:]
  Activation activation;
  DType dtype;
};

struct LinearParams {
  void* out;           // [M, N]
  const void* x;       // [M, K]
  const void* weight;  // [N, K]
  const void* bias;    // [N], or null
  int64_t out_stride;
  int64_t x_stride;
  int64_t weight_stride;
  int64_t num_rows;        // M
  int64_t out_features;    // N
  int64_t total_features;  // of the layer of which N are computed here
  int64_t in_features;     // K
  DType dtype;
};

struct SampleParams {
  const float* logits;  // [N, V]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  const float* temperature;       // [N], 0 = greedy
  const int32_t* top_k;           // [N], 0 = off
  const float* top_p;             // [N], 1 = off
  const float* min_p;             // [N], 0 = off
  const int64_t* seed;            // [N], bits of a uint64
  const int32_t* sequence_index;  // [N]
  const int64_t* position;        // [N]
  int64_t* token_ids;             // [N]
  bool* ok;                       // [N]
};

// Penalties of tokens that a sequence holds already.
struct PenaltyParams {
  float* logits;             // [N, V]
  const int32_t* token_ids;  // [N, L], of the prompt, then of the output
  int64_t row_stride;
  int64_t token_stride;
  int64_t num_rows;
  int64_t vocab_size;
  const int32_t* num_prompt_tokens;  // [N]
  const int32_t* num_tokens;         // [N], prompt and output
  const float* repetition;           // [N], 1 = off
  const float* frequency;            // [N], 0 = off
  const float* presence;             // [N], 0 = off
};

struct TokenMaskParams {
  float* logits;           // [N, V]
  const int32_t* bitmask;  // [N, ceil(V / 32)], bit i % 32 of word i / 32 is of token i
  int64_t row_stride;
  int64_t mask_stride;
  int64_t num_rows;
  int64_t vocab_size;
};

constexpr int kMaxTopLogprobs = 1024;

struct TopLogprobsParams {
  const float* logits;       // [N, V]
  const int64_t* token_ids;  // [N]
  float* logprobs;           // [N]
  int64_t* ranks;            // [N], from 1
  int64_t* top_token_ids;    // [N, K]
  float* top_logprobs;       // [N, K]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  int64_t num_top;  // K
};

}  // namespace quire
