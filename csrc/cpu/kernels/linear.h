// Dense layers over weights of x's own type (see pack_weight in cpu/linear.cpp), and over weights
// of 8 and 4 bits that become such.
#pragma once

#include <type_traits>

#include "cpu/kernels/linear_call.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// How the elements of a type are multiplied: their layout in a panel, and the packed type of x.
template <typename T>
struct Elements;
template <>
struct Elements<float> {
  using Pair = FloatPair;
  using X = float;
};
template <>
struct Elements<f16> {
  using Pair = HalfPair;
  using X = float;
};
template <>
struct Elements<bf16> {
  using Pair = Bf16Pair;
#if defined(__AVX512BF16__)
  using X = bf16;
#else
  using X = float;
#endif
};

template <typename Type>
struct DenseOperands {
  using T = Type;
  using Pair = typename Elements<T>::Pair;
  using X = typename Elements<T>::X;
  static constexpr int kStep = 2;
  static constexpr int kStepBytes = Pair::kBytes;
  static constexpr int64_t kTailBytes = 0;
  static constexpr bool kIsUnpacked = false;
  static constexpr int64_t kChunk = 256;

  explicit DenseOperands(const PackedLinearParams&) {}

  int64_t bytes_of(int64_t elements) const { return elements / kStep * kStepBytes; }

  const T* row_elements(const T* part, int64_t, int64_t, int64_t) const { return part; }

  XRows<X> rows(const X* data, int64_t block_stride, int64_t, int64_t) const {
    return {data, block_stride};
  }

  // The tile of `rows` rows, a constant of kRows or fewer.
  template <int kRows, bool kIsStream>
  static void multiply_rows(int rows, const XRows<X>& x, const TileWeights& weights,
                            const TileSums& out) {
    if constexpr (kRows > 1) {
      if (rows < kRows) return multiply_rows<kRows - 1, kIsStream>(rows, x, weights, out);
    }
#if defined(__AVX512BF16__)
    if constexpr (sizeof(X) == sizeof(bf16))
      return multiply_tile_of_pairs<kRows, kIsStream>(x, weights, out);
#endif
    if constexpr (sizeof(X) == sizeof(float)) {
      constexpr int kVectors = vectors_of(kRows);
      for (int column = 0; column < kPanel; column += kVectors * kLanes)
        multiply_tile<Pair, kRows, kVectors, kIsStream>(x, weights, column, out);
    }
  }
};

// Weights of 8 or 4 bits, in groups of K with a scale and a zero for each feature, which are made
// weights of x's type chunk by chunk: from there on the layer is that of those weights.
template <typename Type>
struct GroupedOperands : DenseOperands<Type> {
  using T = Type;
  using Dense = DenseOperands<T>;
  static constexpr int kPair = 2 * kPanel;  // elements of a pair of K
  static constexpr int kVectors = kPair / kLanes;
  static constexpr bool kIsUnpacked = true;

  const int64_t group_size;
  const int64_t bits;
  const int64_t group_bytes;

  explicit GroupedOperands(const PackedLinearParams& p)
      : Dense(p),
        group_size(p.group_size),
        bits(p.bits),
        group_bytes(grouped_bytes(p.group_size, p.bits)) {}

  int64_t bytes_of(int64_t elements) const { return elements / group_size * group_bytes; }

  const char* unpack(const char* weights, int64_t panel_bytes, int64_t num_panels, int64_t stride,
                     int64_t elements) const {
    static thread_local RowMemory memory;
    char* unpacked = static_cast<char*>(memory.get(num_panels * stride));
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      T* dst = reinterpret_cast<T*>(unpacked + panel * stride);
      const char* group = weights + panel * panel_bytes;
      for (int64_t k = 0; k < elements; k += group_size) {
        if (bits == 8) {
          unpack_group<8>(group, dst);
        } else {
          unpack_group<4>(group, dst);
        }
        group += group_bytes;
        dst += group_size * kPanel;
      }
    }
    return unpacked;
  }

  // Few rows: their sums over the chunk, of weights that never leave the registers.
#if defined(__AVX512BF16__)
  static constexpr int kMaxPackedRows = std::is_same_v<T, bf16> ? 4 : 0;

  template <int kRows = kMaxPackedRows>
  void multiply_packed(int64_t rows, const XRows<bf16>& x, const char* weights, int64_t elements,
                       const TileSums& out) const {
    if constexpr (kRows > 1) {
      if (rows < kRows) return multiply_packed<kRows - 1>(rows, x, weights, elements, out);
    }
    F32 sum[kRows][2];
    for (int i = 0; i < 2 * kRows; ++i) (&sum[0][0])[i] = quire::cpu::QUIRE_ISA::zero();
    for (int64_t k = 0; k < elements; k += group_size) {
      if (bits == 8) {
        add_group<kRows, 8>(sum, x, weights, k);
      } else {
        add_group<kRows, 4>(sum, x, weights, k);
      }
      weights += group_bytes;
    }
    store_sums(sum, 0, out);
  }
#else
  static constexpr int kMaxPackedRows = 0;
#endif

 private:
  // From numbers of features to those of a pair's elements, in the order of a panel of T.
  static void spread(const float* features, F32* elements) {
    float spread[kPair];
    for (int i = 0; i < kPanel; ++i) {
      spread[std::is_same_v<T, bf16> ? 2 * i : i] = features[i];
      spread[std::is_same_v<T, bf16> ? 2 * i + 1 : kPanel + i] = features[i];
    }
    for (int v = 0; v < kVectors; ++v) elements[v] = load(spread + v * kLanes);
  }

  static void load_tail(const char* tail, F32* scale, F32* zero) {
    float features[kPanel];
    memcpy(features, tail, sizeof features);
    spread(features, scale);
    for (int i = 0; i < kPanel; i += kLanes)
      store(features + i, load(reinterpret_cast<const int8_t*>(tail) + sizeof features + i));
    spread(features, zero);
  }

  template <int kBits>
  void unpack_group(const char* group, T* dst) const {
    constexpr int kBytes = kPair * kBits / 8;
    const char* tail = group + group_size / 2 * kBytes;
    F32 scale[kVectors];
    F32 zero[kVectors];
    load_tail(tail, scale, zero);
    for (int64_t pair = 0; pair < group_size / 2; ++pair) {
      __builtin_prefetch(group + kStreamed, 0, 3);
      int8_t nibbles[kPair];
      const int8_t* integers = reinterpret_cast<const int8_t*>(group);
      if constexpr (kBits == 4) {
        for (int i = 0; i < kBytes; ++i) {
          nibbles[i] = integers[i] & 0xf;
          nibbles[kBytes + i] = static_cast<uint8_t>(integers[i]) >> 4;
        }
        integers = nibbles;
      }
      for (int v = 0; v < kVectors; ++v)
        store_rounded(dst + v * kLanes, (load(integers + v * kLanes) - zero[v]) * scale[v]);
      group += kBytes;
      dst += kPair;
    }
  }

#if defined(__AVX512BF16__)
  template <int kRows, int kBits>
  QUIRE_ALWAYS_INLINE void add_group(F32 (&sum)[kRows][2], const XRows<bf16>& x, const char* group,
                                     int64_t first) const {
    constexpr int kBytes = kPair * kBits / 8;
    F32 scale[kVectors];
    F32 zero[kVectors];
    load_tail(group + group_size / 2 * kBytes, scale, zero);
    for (int64_t k = first; k < first + group_size; k += 2) {
      __builtin_prefetch(group + kStreamed, 0, 3);
      __m128i integers[kVectors];
      if constexpr (kBits == 4) {
        const __m256i low = _mm256_set1_epi8(0xf);
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
        const __m256i first_half = _mm256_and_si256(bytes, low);
        const __m256i second_half = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
        integers[0] = _mm256_castsi256_si128(first_half);
        integers[1] = _mm256_extracti128_si256(first_half, 1);
        integers[2] = _mm256_castsi256_si128(second_half);
        integers[3] = _mm256_extracti128_si256(second_half, 1);
      } else {
        for (int v = 0; v < kVectors; ++v)
          integers[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group) + v);
      }
      F32 weight[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) weight[v] = (from_int8(integers[v]) - zero[v]) * scale[v];
      const __m512bh pairs[2] = {_mm512_cvtne2ps_pbh(weight[1].v, weight[0].v),
                                 _mm512_cvtne2ps_pbh(weight[3].v, weight[2].v)};
      const bf16* pair = x.data + k / kXBlock * x.block_stride + k % kXBlock;
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        int elements;
        memcpy(&elements, pair + row * kXBlock, sizeof elements);
        const __m512bh both = (__m512bh)_mm512_set1_epi32(elements);
        sum[row][0].v = _mm512_dpbf16_ps(sum[row][0].v, both, pairs[0]);
        sum[row][1].v = _mm512_dpbf16_ps(sum[row][1].v, both, pairs[1]);
      }
      group += kBytes;
    }
  }
#endif

  static QUIRE_ALWAYS_INLINE void store_rounded(T* p, F32 x) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>) {
      const __m256i bits = (__m256i)_mm512_cvtneps_pbh(x.v);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
      return;
    }
#endif
    store(p, x);
  }
};

}  // namespace

void packed_linear(const PackedLinearParams& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, LinearCall<DenseOperands<T>>(p, pool).run());
}

namespace {

// A thread has whole heads, unless many rows of few heads are better shared out.
template <typename T>
void multiply_heads(const PackedHeadLinearParams& p, ThreadPool& pool) {
  const auto params_of = [&](int64_t head) {
    PackedLinearParams own = p.head;
    own.out = static_cast<T*>(own.out) + head * p.out_head_stride;
    own.x = static_cast<const T*>(own.x) + head * p.x_head_stride;
    own.weight = static_cast<const T*>(own.weight) + head * p.weight_head_stride;
    return own;
  };
  using Call = LinearCall<DenseOperands<T>>;
  if (p.num_heads < pool.num_threads() && p.head.num_rows > kMaxTileRows) {
    for (int64_t head = 0; head < p.num_heads; ++head) Call(params_of(head), pool).run();
    return;
  }
  parallel_for(pool, p.num_heads,
               [&](int64_t head, int worker) { Call(params_of(head), pool).run_alone(worker); });
}

}  // namespace

void packed_head_linear(const PackedHeadLinearParams& p, ThreadPool& pool) {
  if (p.head.num_rows == 0) return;
  QUIRE_DISPATCH_DTYPE(p.head.dtype, T, multiply_heads<T>(p, pool));
}

void grouped_linear(const PackedLinearParams& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, LinearCall<GroupedOperands<T>>(p, pool).run());
}

}  // namespace quire::cpu::QUIRE_ISA
