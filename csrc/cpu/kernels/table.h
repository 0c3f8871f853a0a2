// Fills the kernel table of the ISA that includes this. QUIRE_BF16_TILE and QUIRE_BF16_INT8_TILE
// may name tile engines for bf16 attention over caches of bf16 and of int8, which give the bits of
// PairTile.
#pragma once

#include "cpu/kernels/activation.h"
#include "cpu/kernels/attention.h"
#include "cpu/kernels/attention_pairs.h"
#include "cpu/kernels/cache.h"
#include "cpu/kernels/sampling.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

#ifndef QUIRE_BF16_TILE
#define QUIRE_BF16_TILE PairTile<bf16>
#endif

#ifndef QUIRE_BF16_INT8_TILE
#define QUIRE_BF16_INT8_TILE PairTile<int8_t>
#endif

template <typename T, typename Cached>
struct TileFor {
  using Type = Fp32Tile<T, Cached>;
};

template <>
struct TileFor<bf16, bf16> {
  using Type = QUIRE_BF16_TILE;
};

template <>
struct TileFor<bf16, int8_t> {
  using Type = QUIRE_BF16_INT8_TILE;
};

void attend(const PagedAttentionParams& p, const AttentionItem* items, int64_t num_items,
            ThreadPool& pool) {
  QUIRE_DISPATCH_CPU_CACHE(p, T, Cached,
                           attend_items<TileFor<T, Cached>::Type>(p, items, num_items, pool));
}

// Reads every byte once, in address order per thread: the yardstick for kernels that are bound by
// memory.
uint64_t stream_read(const void* data, int64_t bytes, ThreadPool& pool) {
  constexpr int kChains = 8;
  uint64_t sums[256] = {};
  const int64_t threads = min_of(pool.num_threads(), 256);
  const int64_t words = bytes / 8;
  parallel_for(pool, threads, [&](int64_t thread, int) {
    const uint64_t* p = static_cast<const uint64_t*>(data) + words * thread / threads;
    const int64_t n = words * (thread + 1) / threads - words * thread / threads;
    uint64_t chains[kChains][8] = {};
    for (int64_t i = 0; i + kChains * 8 <= n; i += kChains * 8) {
      for (int c = 0; c < kChains; ++c) {
        for (int j = 0; j < 8; ++j) chains[c][j] ^= p[i + c * 8 + j];
      }
    }
    for (auto& chain : chains) {
      for (const uint64_t word : chain) sums[thread] ^= word;
    }
  });
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum ^= part;
  return sum;
}

constexpr KernelTable kTable = {
    QUIRE_ISA_NAME,
#define QUIRE_ISA_OP(name, Params, ...) name,
#define QUIRE_OP(name, Params, ...)
#include "ops.def"
    attend,         scan_logits, add_to_bins, tokens_of_bin, draw_token,
    sum_weights,    log_of,      philox4x32,  stream_read,
};

}  // namespace

const KernelTable& kernel_table() {
  return kTable;
}

}  // namespace quire::cpu::QUIRE_ISA
