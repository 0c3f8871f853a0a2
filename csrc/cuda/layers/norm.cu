// rms_norm, fused_add_rms_norm, layer_norm: a block for each row. Thread t adds up packs t,
// t + kThreads ... of the row and the threads' sums are added in one order, so a row's result
// depends on nothing but the row.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/vector.h"
#include "ops/layers.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__device__ T* norm_row(const NormRows& rows, int64_t inner_size) {
  const int64_t row = blockIdx.x;
  return static_cast<T*>(rows.data) + row / inner_size * rows.outer_stride +
         row % inner_size * rows.inner_stride;
}

// Sum over the elements of a row of term(value); the same in every thread.
template <typename T, typename Term>
__device__ float sum_row(const T* row, int64_t n, const Term& term) {
  constexpr int kPack = Pack<T>::kSize;
  float sum = 0.f;
  for (int64_t begin = int64_t{threadIdx.x} * kPack; begin < n; begin += kThreads * kPack) {
    float x[kPack];
    load_pack(row, begin, n, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      if (begin + i < n) sum += term(x[i]);
  }
  return block_sum<kThreads>(sum);
}

template <typename T>
__device__ void rms_norm_row(T* out, const T* x, const T* weight, int64_t n, float eps) {
  constexpr int kPack = Pack<T>::kSize;
  const float square = sum_row(x, n, [](float v) { return v * v; });
  const float factor = 1.f / sqrtf(square / static_cast<float>(n) + eps);
  for (int64_t begin = int64_t{threadIdx.x} * kPack; begin < n; begin += kThreads * kPack) {
    float v[kPack];
    float w[kPack];
    load_pack(x, begin, n, v);
    load_pack(weight, begin, n, w);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = v[i] * factor * w[i];
    store_pack(out, begin, n, v);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const NormParams p) {
  begin_kernel();
  rms_norm_row(norm_row<T>(p.out, p.inner), norm_row<const T>(p.x, p.inner),
               static_cast<const T*>(p.weight), p.n, p.eps);
}

// The sum is rounded to T before it is normalised, as when the two ops run one after the other.
template <typename T>
__global__ void __launch_bounds__(kThreads) fused_add_rms_norm_kernel(const NormParams p) {
  begin_kernel();
  constexpr int kPack = Pack<T>::kSize;
  T* x = norm_row<T>(p.x, p.inner);
  T* residual = norm_row<T>(p.residual, p.inner);
  for (int64_t begin = int64_t{threadIdx.x} * kPack; begin < p.n; begin += kThreads * kPack) {
    float a[kPack];
    float b[kPack];
    load_pack(x, begin, p.n, a);
    load_pack(residual, begin, p.n, b);
#pragma unroll
    for (int i = 0; i < kPack; ++i) a[i] += b[i];
    store_pack(residual, begin, p.n, a);
  }
  // Each thread reads back what it wrote itself.
  rms_norm_row(x, residual, static_cast<const T*>(p.weight), p.n, p.eps);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(const NormParams p) {
  begin_kernel();
  constexpr int kPack = Pack<T>::kSize;
  T* out = norm_row<T>(p.out, p.inner);
  const T* x = norm_row<const T>(p.x, p.inner);
  const T* weight = static_cast<const T*>(p.weight);
  const T* bias = static_cast<const T*>(p.bias);
  const float mean = sum_row(x, p.n, [](float v) { return v; }) / static_cast<float>(p.n);
  const float square = sum_row(x, p.n, [mean](float v) { return (v - mean) * (v - mean); });
  const float factor = 1.f / sqrtf(square / static_cast<float>(p.n) + p.eps);
  for (int64_t begin = int64_t{threadIdx.x} * kPack; begin < p.n; begin += kThreads * kPack) {
    float v[kPack];
    float w[kPack];
    load_pack(x, begin, p.n, v);
    load_pack(weight, begin, p.n, w);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = (v[i] - mean) * factor * w[i];
    if (bias != nullptr) {
      load_pack(bias, begin, p.n, w);
#pragma unroll
      for (int i = 0; i < kPack; ++i) v[i] += w[i];
    }
    store_pack(out, begin, p.n, v);
  }
}

}  // namespace

void rms_norm(const NormParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T, launch(rms_norm_kernel<T>, grid_size(p.outer * p.inner), kThreads, 0, stream, p));
}

void fused_add_rms_norm(const NormParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T,
      launch(fused_add_rms_norm_kernel<T>, grid_size(p.outer * p.inner), kThreads, 0, stream, p));
}

void layer_norm(const NormParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T,
      launch(layer_norm_kernel<T>, grid_size(p.outer * p.inner), kThreads, 0, stream, p));
}

}  // namespace quire::cuda
