// The kernels of one instruction set. Each cpu/isa_*.cpp compiles the same text of cpu/kernels/
// with its own flags and fills one table; nothing else of it is visible. Plain data only, as in
// core/params.h.
#pragma once

#include <cstdint>

#include "core/params.h"
#include "cpu/thread_pool.h"

namespace quire::cpu {

// One unit of attention work: query rows [row_begin, row_end) of a sequence (counted from its first
// row in this step) and kv heads [head_begin, head_end).
struct AttentionItem {
  int32_t seq;
  int32_t row_begin;
  int32_t row_end;
  int32_t head_begin;
  int32_t head_end;
};

// The result of one pass over a row of logits.
struct LogitsScan {
  float max;
  int64_t argmax;  // lowest index of the maximum
  bool ok;         // no NaN, no +inf, at least one finite value
};

// A row of logits that is sampled from: token i has x = (logits[i] - max) / temperature.
struct ScaledLogits {
  const float* logits;
  int64_t size;
  float max;
  float temperature;
};

// Bins of a row, by x: each holds 1/64 of a logit below the one before it, the last all the rest.
constexpr float kBinsPerUnit = 64.f;
constexpr int kNumBins = 2048;  // 32 units; every token below weighs 0

// A token of the bin in which a cut lies.
struct Candidate {
  float x;
  int64_t index;
  int64_t weight;  // floor(2^40 e^x)
};

// Tokens a sampler may draw: x > x_cut, or x == x_cut and index <= index_cut.
struct SampleCut {
  float x_cut;
  int64_t index_cut;
};

// The key of the random draw of a row.
struct DrawKey {
  uint64_t seed;
  int32_t sequence_index;
  int64_t position;
};

struct KernelTable {
  const char* name;

#define QUIRE_ISA_OP(name, Params, ...) void (*name)(const Params&, ThreadPool&);
#define QUIRE_OP(name, Params, ...)
#include "ops.def"

  // Called by the other operations (cpu/cpu_ops.h).
  void (*attend)(const PagedAttentionParams&, const AttentionItem* items, int64_t num_items,
                 ThreadPool&);
  LogitsScan (*scan_logits)(const float* logits, int64_t n);
  // Adds to each bin the weight of its tokens that the cut keeps, or their number.
  void (*add_to_bins)(const ScaledLogits&, const SampleCut&, bool by_weight, int64_t* bins);
  // Writes the tokens of [begin, end) in a bin that the cut keeps, in order; returns how many.
  int64_t (*tokens_of_bin)(const ScaledLogits&, const SampleCut&, int bin, int64_t begin,
                           int64_t end, Candidate* out);
  int64_t (*draw_token)(const ScaledLogits&, const SampleCut&, const DrawKey&);
  // The sum of 2^44 e^(logits[i] - max), each rounded down.
  uint64_t (*sum_weights)(const float* logits, int64_t n, float max);
  float (*log)(float);
  void (*philox4x32)(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
  uint64_t (*stream_read)(const void* data, int64_t bytes, ThreadPool&);
};

namespace scalar {
const KernelTable& kernel_table();
void packed_linear(const PackedLinearParams&, ThreadPool&);           // cpu/linear_scalar.cpp
void packed_head_linear(const PackedHeadLinearParams&, ThreadPool&);  // cpu/linear_scalar.cpp
void grouped_linear(const PackedLinearParams&, ThreadPool&);          // cpu/linear_scalar.cpp
void int8_linear(const PackedLinearParams&, ThreadPool&);             // cpu/linear_int8_scalar.cpp
}  // namespace scalar
namespace avx2 {
const KernelTable& kernel_table();
void packed_linear(const PackedLinearParams&, ThreadPool&);           // cpu/linear_avx2.cpp
void packed_head_linear(const PackedHeadLinearParams&, ThreadPool&);  // cpu/linear_avx2.cpp
void grouped_linear(const PackedLinearParams&, ThreadPool&);          // cpu/linear_avx2.cpp
void int8_linear(const PackedLinearParams&, ThreadPool&);             // cpu/linear_int8_avx2.cpp
}  // namespace avx2
namespace avx512 {
const KernelTable& kernel_table();
void packed_linear(const PackedLinearParams&, ThreadPool&);           // cpu/linear_avx512.cpp
void packed_head_linear(const PackedHeadLinearParams&, ThreadPool&);  // cpu/linear_avx512.cpp
void grouped_linear(const PackedLinearParams&, ThreadPool&);          // cpu/linear_avx512.cpp
void int8_linear(const PackedLinearParams&, ThreadPool&);             // cpu/linear_int8_avx512.cpp
}  // namespace avx512
namespace avx512_bf16 {
const KernelTable& kernel_table();
void packed_linear(const PackedLinearParams&, ThreadPool&);           // cpu/linear_avx512_bf16.cpp
void packed_head_linear(const PackedHeadLinearParams&, ThreadPool&);  // cpu/linear_avx512_bf16.cpp
void grouped_linear(const PackedLinearParams&, ThreadPool&);          // cpu/linear_avx512_bf16.cpp
void int8_linear(const PackedLinearParams&, ThreadPool&);  // cpu/linear_int8_avx512_bf16.cpp
}  // namespace avx512_bf16

}  // namespace quire::cpu
