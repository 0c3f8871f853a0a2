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
  static __device__ void load_keys(uint32_t (&k)[1][4], const char* tile, int load, int lane) {
    ptx::load_matrices(k[0], tile + Shape::offset(lane % 16, load * 2 + lane / 16));
  }

  template <typename Shape>
  static __device__ void load_values(uint32_t (&v)[1][4], const char* tile, int load, int lane) {
    const int token = lane % 8 + lane / 16 * 8;
    ptx::load_matrices_transposed(v[0], tile + Shape::offset(token, load * 2 + lane / 8 % 2));
  }
};

template <typename T>
struct MmaOperands<T, e4m3> {
  using Element = f16;
  static constexpr int kStepsOfLoad = 2;

  static __device__ int query_element(int lane, int i) { return lane % 4 * 4 + i * 2; }
  static __device__ int value_element(int lane, int half) { return lane / 4 * 2 + half; }

  // A lane has four elements of a token in a register: two for each half of a step's slots.
  template <typename Shape>
  static __device__ void load_keys(uint32_t (&k)[2][4], const char* tile, int load, int lane) {
    uint32_t codes[4];
    ptx::load_matrices(codes, tile + offset<Shape>(load, lane));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        k[s][i] = ptx::widen_e4m3(codes[s * 2 + i] & 0xffff);
        k[s][i + 2] = ptx::widen_e4m3(codes[s * 2 + i] >> 16);
      }
    }
  }

  // A lane has two elements of two tokens in a register; a pair is to be of one element.
  template <typename Shape>
  static __device__ void load_values(uint32_t (&v)[2][4], const char* tile, int load, int lane) {
    uint32_t codes[4];
    ptx::load_matrices_transposed(codes, tile + offset<Shape>(load, lane));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pairs = __byte_perm(codes[s * 2 + i], 0, 0x3120);
        v[s][i * 2] = ptx::widen_e4m3(pairs & 0xffff);
        v[s][i * 2 + 1] = ptx::widen_e4m3(pairs >> 16);
      }
    }
  }

 private:
  // Two tiles of eight tokens by two chunks; a head of an odd number of chunks ends with one,
  // twice.
  template <typename Shape>
  static __device__ int offset(int load, int lane) {
    return Shape::offset(lane % 16, min(load * 2 + lane / 16, Shape::kChunks - 1));
  }
};

// Scales bfloat16 to the middle of the range of float16: the power of two that takes `largest` to
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
