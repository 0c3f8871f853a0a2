// How tiles of keys and values in shared memory become operands of matrix products of 16 bits.
//
// Elements of 16 bits are loaded as they are. Those of 8 bits are loaded in pairs, as if a pair
// were one element, and widened in registers: all to float16, which holds every e4m3. A pair
// belongs to one k-slot of a product, or to one row, so elements of a head take other places in a
// step's 16 than they have in memory, the same in keys as in queries, and in values as in the
// result.
#pragma once

#include "cuda/attention/mma_columns.cuh"

namespace quire::cuda {

// Where a lane's rows of the matrices of a tile lie: each load takes two chunks. The lane's rows
// are those of number lane % 8 in each eight, so that chunks that change places do so alike in keys
// and values, and every fourth load as in the first.
template <typename Shape>
struct LaneRows {
  int keys;  // of the first load
  int values;
  int turned[4];  // how far behind the first the next ones lie

  __device__ LaneRows(int key, int value, int lane) : keys(key), values(value) {
#pragma unroll
    for (int load = 0; load < 4; ++load)
      turned[load] = Shape::kSwizzles ? ((load * 2 ^ (lane & 6)) - (lane & 6)) * 16 : load * 32;
  }

  // How far behind those of the first load.
  __device__ int behind(int load) const { return turned[load % 4] + load / 4 * 128; }
};

template <typename T, typename Cached>
struct MmaOperands;

template <typename T>
struct MmaOperands<T, T> {
  using Element = T;
  static constexpr int kStepsOfLoad = 1;

  // The element of a step's 16 that register i of a lane's part of a query begins with.
  static __device__ int query_element(int lane, int i) { return i * 8 + lane % 4 * 2; }

  // The element of a step's 16 that a lane has results of: first those of rows 0 to 7.
  static __device__ int value_element(int lane, int half) { return half * 8 + lane / 4; }

  template <typename Shape>
  static __device__ LaneRows<Shape> rows(int lane) {
    return LaneRows<Shape>(Shape::offset(lane % 16, lane / 16),
                           Shape::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2), lane);
  }

  // `tile` is where the lane's rows of the first load lie.
  template <typename Shape>
  static __device__ void load_keys(uint32_t (&k)[1][4], const char* tile,
                                   const LaneRows<Shape>& rows, int load) {
    ptx::load_matrices(k[0], tile + rows.behind(load));
  }

  template <typename Shape>
  static __device__ void load_values(uint32_t (&v)[1][4], const char* tile,
                                     const LaneRows<Shape>& rows, int load) {
    ptx::load_matrices_transposed(v[0], tile + rows.behind(load));
  }
};

template <typename T>
struct MmaOperands<T, e4m3> {
  using Element = f16;
  static constexpr int kStepsOfLoad = 2;

  static __device__ int query_element(int lane, int i) { return lane % 4 * 4 + i * 2; }
  static __device__ int value_element(int lane, int half) { return lane / 4 * 2 + half; }

  // Two tiles of eight tokens by two chunks, of keys as of values.
  template <typename Shape>
  static __device__ LaneRows<Shape> rows(int lane) {
    const int first = Shape::offset(lane % 16, lane / 16);
    return LaneRows<Shape>(first, first, lane);
  }

  // A lane has four elements of a token in a register: two for each half of a step's slots.
  template <typename Shape>
  static __device__ void load_keys(uint32_t (&k)[2][4], const char* tile,
                                   const LaneRows<Shape>& rows, int load) {
    uint32_t codes[4];
    ptx::load_matrices(codes, tile + behind(rows, load));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::widen_e4m3(codes[s * 2 + i], k[s][i], k[s][i + 2]);
      }
    }
  }

  // A lane has two elements of two tokens in a register; a pair is to be of one element.
  template <typename Shape>
  static __device__ void load_values(uint32_t (&v)[2][4], const char* tile,
                                     const LaneRows<Shape>& rows, int load) {
    uint32_t codes[4];
    ptx::load_matrices_transposed(codes, tile + behind(rows, load));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pairs = __byte_perm(codes[s * 2 + i], 0, 0x3120);
        ptx::widen_e4m3(pairs, v[s][i * 2], v[s][i * 2 + 1]);
      }
    }
  }

 private:
  // A head of an odd number of chunks ends with one, twice.
  template <typename Shape>
  static __device__ int behind(const LaneRows<Shape>& rows, int load) {
    const bool is_half = load * 2 + 1 == Shape::kChunks;
    return rows.behind(load) - (is_half ? static_cast<int>(threadIdx.x) / 16 % 2 * 16 : 0);
  }
};

// Scales bfloat16 to the upper end of float16's range: the power of two that takes `largest` to
// [2^14, 2^15), and its inverse. Only values below 2^-28 of `largest` are lost.
struct PowerOfTwo {
  float factor;
  float inverse;

  explicit __device__ PowerOfTwo(float largest) {
    const uint32_t exponent = max(__float_as_uint(largest) >> 23, 15u);
    factor = __uint_as_float((268 - exponent) << 23);
    inverse = __uint_as_float((exponent - 14) << 23);
  }
};

}  // namespace quire::cuda
