// One register tile of a dense layer: a few rows of x times a panel of 32 features, over one chunk
// of K. docs/numerics.md has the order of roundings, which nothing here may change.
//
// Features lie in the lanes and each element of x is broadcast to all of them, so the width of the
// vectors, the shape of the tile and the place of a row in it cannot enter a result.
#pragma once

#include "cpu/kernels/element.h"
#include "ops/linear.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kPanel = kPanelFeatures;
constexpr int kXBlock = 16;      // elements of K that lie together in the packed rows of x
constexpr int kStreamed = 4096;  // bytes that weights are prefetched ahead, if each is read once

#if defined(__AVX512F__)
constexpr int kMaxTileRows = 14;
constexpr int vectors_of(int) {
  return 2;
}
#elif defined(__AVX2__)
constexpr int kMaxTileRows = 6;
constexpr int vectors_of(int rows) {
  return rows <= 2 ? 4 : 2;
}
#else
constexpr int kMaxTileRows = 4;
constexpr int vectors_of(int) {
  return 4;
}
#endif

// c = a * b + c, in place: left to itself the compiler copies accumulators.
QUIRE_ALWAYS_INLINE void accumulate(F32& c, F32 a, F32 b) {
#if defined(__AVX512F__)
  asm("vfmadd231ps %2, %1, %0" : "+v"(c.v) : "v"(a.v), "v"(b.v));
#elif defined(__AVX2__)
  asm("vfmadd231ps %2, %1, %0" : "+x"(c.v) : "x"(a.v), "x"(b.v));
#else
  for (int i = 0; i < kLanes; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
#endif
}

// How two consecutive elements of K lie in a panel: the second ("odd") and the first ("even") of
// each, for kLanes features from `column`.
struct FloatPair {
  static constexpr int kBytes = 2 * kPanel * 4;  // [k][feature]
  static QUIRE_ALWAYS_INLINE F32 odd(const char* pair, int column) {
    return load(reinterpret_cast<const float*>(pair) + kPanel + column);
  }
  static QUIRE_ALWAYS_INLINE F32 even(const char* pair, int column) {
    return load(reinterpret_cast<const float*>(pair) + column);
  }
};

struct HalfPair {
  static constexpr int kBytes = 2 * kPanel * 2;  // [k][feature]
  static QUIRE_ALWAYS_INLINE F32 odd(const char* pair, int column) {
    return load(reinterpret_cast<const f16*>(pair) + kPanel + column);
  }
  static QUIRE_ALWAYS_INLINE F32 even(const char* pair, int column) {
    return load(reinterpret_cast<const f16*>(pair) + column);
  }
};

struct Bf16Pair {
  static constexpr int kBytes = 2 * kPanel * 2;  // [feature][k], as VDPBF16PS reads it
  static QUIRE_ALWAYS_INLINE F32 odd(const char* pair, int column) {
    return load_pairs(pair + 4 * column).odd;
  }
  static QUIRE_ALWAYS_INLINE F32 even(const char* pair, int column) {
    return load_pairs(pair + 4 * column).even;
  }
};

// Rows of x, packed as [block of K][row][kXBlock]: rows of a tile are neighbours, and the next
// block can be fetched while one is used. Elements are float, or bf16 for VDPBF16PS.
template <typename X>
struct XRows {
  const X* data;
  int64_t block_stride;  // elements from one block of K to the next

  XRows from(int64_t row) const { return {data + row * kXBlock, block_stride}; }
};

// Where a tile's sums go: row r and feature f of the item's buffer lie at data[r * stride + f].
struct TileSums {
  float* data;
  int64_t stride;
  bool adds;  // to what is there, as the chunks of a part after its first do
};

// The weights of a tile: a chunk of a panel, and what to fetch meanwhile.
struct TileWeights {
  const char* data;
  const char* next;  // weights that are needed soon, where each is read more than once
  int num_steps;     // pairs of elements of K in this chunk, fours of int8
};

template <int kRows, int kVectors>
QUIRE_ALWAYS_INLINE void add_element(F32 (&sum)[kRows][kVectors], const F32 (&weight)[kVectors],
                                     const float* x) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    const F32 element = broadcast(x[row * kXBlock]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) accumulate(sum[row][v], element, weight[v]);
  }
}

template <int kRows, int kVectors>
QUIRE_ALWAYS_INLINE void store_sums(const F32 (&sum)[kRows][kVectors], int column,
                                    const TileSums& out) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* p = out.data + row * out.stride + column + v * kLanes;
      store(p, out.adds ? load(p) + sum[row][v] : sum[row][v]);
    }
  }
}

template <int kBytes, bool kIsStream>
QUIRE_ALWAYS_INLINE void fetch_weights(const char* data, const char*& next) {
  if constexpr (kIsStream) {
#pragma GCC unroll 8
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(data + kStreamed + line, 0, 3);
  } else {
#pragma GCC unroll 8
    for (int line = 0; line < kBytes / 2; line += 64) __builtin_prefetch(next + line, 0, 2);
    next += kBytes / 2;
  }
}

// kVectors * kLanes features, from `column`.
template <typename Pair, int kRows, int kVectors, bool kIsStream>
void multiply_tile(const XRows<float>& rows, TileWeights weights, int column, TileSums out) {
  F32 sum[kRows][kVectors];
#pragma GCC unroll 64
  for (int i = 0; i < kRows * kVectors; ++i) (&sum[0][0])[i] = zero();
  constexpr int kPairsOfBlock = kXBlock / 2;
  // Lines of the next block of x to fetch with each pair, so that all come in time.
  constexpr int kLines = kRows > 4 ? (kRows + kPairsOfBlock - 1) / kPairsOfBlock : 0;
  const float* x = rows.data;
  const char* data = weights.data;
  const char* next = weights.next;
  // One flat loop: of two nested ones GCC 12 keeps the sums in memory.
  for (int pair = 0; pair < weights.num_steps; ++pair) {
    const int in_block = pair % kPairsOfBlock;
    if constexpr (kLines > 0) {
      const float* ahead = x - 2 * in_block + rows.block_stride + kLines * in_block * kXBlock;
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line) __builtin_prefetch(ahead + line * kXBlock, 0, 3);
    }
    fetch_weights<Pair::kBytes, kIsStream>(data, next);
    F32 weight[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weight[v] = Pair::odd(data, column + v * kLanes);
    add_element(sum, weight, x + 1);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weight[v] = Pair::even(data, column + v * kLanes);
    add_element(sum, weight, x);
    data += Pair::kBytes;
    x += in_block + 1 == kPairsOfBlock ? rows.block_stride - (kXBlock - 2) : 2;
  }
  store_sums(sum, column, out);
}

#if defined(__AVX512BF16__)
// The same with the instruction that multiplies pairs: by its definition, and by test, the two
// fused multiply-adds of multiply_tile, the odd element first.
template <int kRows, bool kIsStream>
void multiply_tile_of_pairs(const XRows<bf16>& rows, TileWeights weights, TileSums out) {
  constexpr int kVectors = kPanel / kLanes;
  constexpr int kPairsOfBlock = kXBlock / 2;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 64
  for (int i = 0; i < kRows * kVectors; ++i) (&sum[0][0])[i] = zero();
  const bf16* x = rows.data;
  const char* data = weights.data;
  const char* next = weights.next;
  for (int pair = 0; pair < weights.num_steps; ++pair) {
    fetch_weights<Bf16Pair::kBytes, kIsStream>(data, next);
    __m512i weight[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weight[v] = _mm512_loadu_si512(data + 4 * v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      int elements;
      memcpy(&elements, x + row * kXBlock, sizeof elements);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(elements);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[row][v].v = _mm512_dpbf16_ps(sum[row][v].v, both, (__m512bh)weight[v]);
    }
    data += Bf16Pair::kBytes;
    const bool ends_block = pair % kPairsOfBlock + 1 == kPairsOfBlock;
    x += ends_block ? rows.block_stride - (kXBlock - 2) : 2;
  }
  store_sums(sum, 0, out);
}
#endif

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
