// rms_norm, fused_add_rms_norm, layer_norm. The order in which a row is summed is fixed (sums.h),
// so its result depends on nothing but the row.
#pragma once

#include "core/dispatch.h"
#include "cpu/kernels/parallel.h"
#include "cpu/kernels/row_vectors.h"
#include "cpu/kernels/sums.h"
#include "ops/layers.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <typename T>
inline T* norm_row(const NormRows& rows, int64_t outer, int64_t inner) {
  return static_cast<T*>(rows.data) + outer * rows.outer_stride + inner * rows.inner_stride;
}

template <typename T>
void rms_norm_row(T* out, const T* x, const T* weight, int64_t n, float eps) {
  const float square = sum_row(n, [&](int64_t i, int lanes) {
    const F32 v = load_up_to(x + i, lanes);
    return v * v;
  });
  const F32 factor = broadcast(1.f / __builtin_sqrtf(square / static_cast<float>(n) + eps));
  for_each_vector(n, [&](int64_t i, int lanes) {
    store_up_to(out + i, load_up_to(x + i, lanes) * factor * load_up_to(weight + i, lanes), lanes);
  });
}

template <typename T>
void layer_norm_row(T* out, const T* x, const T* weight, const T* bias, int64_t n, float eps) {
  const float mean = sum_row(n, [&](int64_t i, int lanes) { return load_up_to(x + i, lanes); }) /
                     static_cast<float>(n);
  const F32 center = broadcast(mean);
  const F32 index = iota();
  const float variance = sum_row(n, [&](int64_t i, int lanes) {
    const F32 v = load_up_to(x + i, lanes) - center;
    return select_less(index, broadcast(static_cast<float>(lanes)), v * v, zero());
  });
  const F32 factor = broadcast(1.f / __builtin_sqrtf(variance / static_cast<float>(n) + eps));
  for_each_vector(n, [&](int64_t i, int lanes) {
    F32 y = (load_up_to(x + i, lanes) - center) * factor * load_up_to(weight + i, lanes);
    if (bias != nullptr) y = y + load_up_to(bias + i, lanes);
    store_up_to(out + i, y, lanes);
  });
}

template <typename T, typename Row>
void for_each_norm_row(const NormParams& p, ThreadPool& pool, const Row& row) {
  parallel_rows(pool, p.outer * p.inner, p.n * 3 * static_cast<int64_t>(sizeof(T)),
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) row(i / p.inner, i % p.inner);
                });
}

void rms_norm(const NormParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_DTYPE(p.dtype, T, for_each_norm_row<T>(p, pool, [&](int64_t outer, int64_t inner) {
                         rms_norm_row(norm_row<T>(p.out, outer, inner),
                                      norm_row<const T>(p.x, outer, inner),
                                      static_cast<const T*>(p.weight), p.n, p.eps);
                       }));
}

// The sum is rounded to T before it is normalised, as when the two ops run one after the other.
void fused_add_rms_norm(const NormParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_DTYPE(p.dtype, T, for_each_norm_row<T>(p, pool, [&](int64_t outer, int64_t inner) {
                         T* x = norm_row<T>(p.x, outer, inner);
                         T* residual = norm_row<T>(p.residual, outer, inner);
                         for_each_vector(p.n, [&](int64_t i, int lanes) {
                           const F32 sum =
                               load_up_to(x + i, lanes) + load_up_to(residual + i, lanes);
                           store_up_to(residual + i, sum, lanes);
                         });
                         rms_norm_row(x, residual, static_cast<const T*>(p.weight), p.n, p.eps);
                       }));
}

void layer_norm(const NormParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T, for_each_norm_row<T>(p, pool, [&](int64_t outer, int64_t inner) {
        layer_norm_row(norm_row<T>(p.out, outer, inner), norm_row<const T>(p.x, outer, inner),
                       static_cast<const T*>(p.weight), static_cast<const T*>(p.bias), p.n, p.eps);
      }));
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
