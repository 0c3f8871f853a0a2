// Norms and activations: what their kernels are given, and the checks of their arguments.
#pragma once

#include "core/params.h"

namespace quire {

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

struct ActivationParams {
  void* out;
  const void* x;
  int64_t out_stride;
  int64_t x_stride;
  int64_t rows;
  int64_t n;   // columns of out
  bool gated;  // x has 2n columns and out = act(x[:n]) * x[n:]
  DType dtype;
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)
#include <string>

#include "core/check.h"
#include "ops/ops.h"

namespace quire::ops {
namespace {

// A tensor [M, N] or [M, H, N] of the shape and dtype of x, unit stride along N.
NormRows norm_rows(const char* name, const Tensor& tensor, const Tensor& x) {
  if (x.ndim == 3) {
    check_shape(name, tensor, {x.shape[0], x.shape[1], x.shape[2]}, "[M, H, N]");
  } else {
    check_shape(name, tensor, {x.shape[0], x.shape[1]}, "[M, N]");
  }
  check_dtype(name, tensor, x.dtype);
  check_unit_stride(name, tensor);
  check_device(name, tensor, x.device);
  return {tensor.data, tensor.stride[0], x.ndim == 3 ? tensor.stride[1] : 0};
}

void check_vector(const char* name, const Tensor& vector, const Tensor& x) {
  check_shape(name, vector, {x.shape[x.ndim - 1]}, "[N]");
  check_dtype(name, vector, x.dtype);
  check_contiguous(name, vector);
  check_device(name, vector, x.device);
}

NormParams norm_params(const Tensor& x, const Tensor& weight, double eps) {
  if (x.ndim != 2 && x.ndim != 3) fail("x: must be [M, N] or [M, H, N], got " + shape_text(x));
  check_activation_dtype("x", x);
  check_vector("weight", weight, x);
  if (!(eps >= 0)) fail("eps: must not be negative, got " + std::to_string(eps));
  NormParams p{};
  p.x = norm_rows("x", x, x);
  p.weight = weight.data;
  p.outer = x.shape[0];
  p.inner = x.ndim == 3 ? x.shape[1] : 1;
  p.n = x.shape[x.ndim - 1];
  p.eps = static_cast<float>(eps);
  p.dtype = x.dtype;
  return p;
}

ActivationParams activation_params(const Tensor& out, const Tensor& x, bool gated) {
  check_shape("out", out, {-1, -1}, "[M, N]");
  check_shape("x", x, {out.shape[0], out.shape[1] * (gated ? 2 : 1)}, gated ? "[M, 2N]" : "[M, N]");
  check_activation_dtype("x", x);
  check_dtype("out", out, x.dtype);
  check_unit_stride("out", out);
  check_unit_stride("x", x);
  check_device("out", out, x.device);
  ActivationParams p{};
  p.out = out.data;
  p.x = x.data;
  p.out_stride = out.stride[0];
  p.x_stride = x.stride[0];
  p.rows = out.shape[0];
  p.n = out.shape[1];
  p.gated = gated;
  p.dtype = x.dtype;
  return p;
}

}  // namespace

void rms_norm(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
              double eps) {
  NormParams p = norm_params(x, weight, eps);
  p.out = norm_rows("out", out, x);
  backend.rms_norm(p);
}

void fused_add_rms_norm(Backend& backend, const Tensor& x, const Tensor& residual,
                        const Tensor& weight, double eps) {
  NormParams p = norm_params(x, weight, eps);
  p.residual = norm_rows("residual", residual, x);
  backend.fused_add_rms_norm(p);
}

void layer_norm(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
                const std::optional<Tensor>& bias, double eps) {
  NormParams p = norm_params(x, weight, eps);
  p.out = norm_rows("out", out, x);
  if (bias) {
    check_vector("bias", *bias, x);
    p.bias = bias->data;
  }
  backend.layer_norm(p);
}

void silu_and_mul(Backend& backend, const Tensor& out, const Tensor& x) {
  backend.silu_and_mul(activation_params(out, x, true));
}

void gelu_and_mul(Backend& backend, const Tensor& out, const Tensor& x) {
  backend.gelu_and_mul(activation_params(out, x, true));
}

void gelu_tanh_and_mul(Backend& backend, const Tensor& out, const Tensor& x) {
  backend.gelu_tanh_and_mul(activation_params(out, x, true));
}

void gelu(Backend& backend, const Tensor& out, const Tensor& x) {
  backend.gelu(activation_params(out, x, false));
}

void gelu_tanh(Backend& backend, const Tensor& out, const Tensor& x) {
  backend.gelu_tanh(activation_params(out, x, false));
}

void quick_gelu(Backend& backend, const Tensor& out, const Tensor& x) {
  backend.quick_gelu(activation_params(out, x, false));
}

}  // namespace quire::ops

#endif
