// Activations, plain and gated. Each element is computed in fp32 and rounded once.
#pragma once

#include "cpu/kernels/math.h"
#include "cpu/kernels/norm.h"
#include "ops/logits.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

struct Silu {
  static F32 apply(F32 x) { return x * sigmoid(x); }
};

// x Phi(x), where Phi(x) = erfc(-x / sqrt(2)) / 2: no cancellation for negative x.
struct Gelu {
  static F32 apply(F32 x) {
    const F32 tail = broadcast(0.5f) * erfc_positive(abs(x) * broadcast(0.70710678f));
    return x * select_less(x, zero(), tail, broadcast(1.f) - tail);
  }
};

// (1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static F32 apply(F32 x) {
    const F32 inner = fma(x * x * broadcast(0.044715f), x, x);
    return x * sigmoid(inner * broadcast(2 * 0.79788456f));
  }
};

struct QuickGelu {
  static F32 apply(F32 x) { return x * sigmoid(x * broadcast(1.702f)); }
};

template <typename Fn, typename T>
void activate(const ActivationParams& p, ThreadPool& pool) {
  parallel_rows(pool, p.rows, p.n * 3 * static_cast<int64_t>(sizeof(T)),
                [&](int64_t begin, int64_t end) {
                  for (int64_t row = begin; row < end; ++row) {
                    T* out = static_cast<T*>(p.out) + row * p.out_stride;
                    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
                    for_each_vector(p.n, [&](int64_t i, int lanes) {
                      F32 y = Fn::apply(load_up_to(x + i, lanes));
                      if (p.gated) y = y * load_up_to(x + p.n + i, lanes);
                      store_up_to(out + i, y, lanes);
                    });
                  }
                });
}

template <typename Fn>
void activate_rows(const ActivationParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_DTYPE(p.dtype, T, (activate<Fn, T>(p, pool)));
}

void silu_and_mul(const ActivationParams& p, ThreadPool& pool) {
  activate_rows<Silu>(p, pool);
}

void gelu_and_mul(const ActivationParams& p, ThreadPool& pool) {
  activate_rows<Gelu>(p, pool);
}

void gelu_tanh_and_mul(const ActivationParams& p, ThreadPool& pool) {
  activate_rows<GeluTanh>(p, pool);
}

void gelu(const ActivationParams& p, ThreadPool& pool) {
  activate_rows<Gelu>(p, pool);
}

void gelu_tanh(const ActivationParams& p, ThreadPool& pool) {
  activate_rows<GeluTanh>(p, pool);
}

void quick_gelu(const ActivationParams& p, ThreadPool& pool) {
  activate_rows<QuickGelu>(p, pool);
}

void apply_soft_cap(const SoftCapParams& p, ThreadPool& pool) {
  const F32 cap = broadcast(p.cap);
  parallel_rows(pool, p.num_rows, 2 * p.vocab_size * int64_t{sizeof(float)},
                [&](int64_t begin, int64_t end) {
                  for (int64_t row = begin; row < end; ++row) {
                    float* logits = p.logits + row * p.row_stride;
                    for_each_vector(p.vocab_size, [&](int64_t i, int lanes) {
                      const F32 share = load_up_to(logits + i, lanes) / cap;
                      store_up_to(logits + i, tanh(share) * cap, lanes);
                    });
                  }
                });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
