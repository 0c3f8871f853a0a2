// Linear layers: what their kernels are given, and the checks of their arguments.
#pragma once

#include "core/params.h"

namespace quire {

struct LinearParams {
  void* out;           // [M, N]
  const void* x;       // [M, K]
  const void* weight;  // [N, K]
  const void* bias;    // [N], or null
  int64_t out_stride;
  int64_t x_stride;
  int64_t weight_stride;
  int64_t num_rows;        // M
  int64_t out_features;    // N
  int64_t total_features;  // of the whole layer; N of them are computed here
  int64_t in_features;     // K
  DType dtype;
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)

#include "core/check.h"
#include "ops/ops.h"

namespace quire::ops {
namespace {

// A matrix of x's dtype and device, unit stride along its rows.
void check_matrix(const char* name, const Tensor& tensor, const Tensor& x) {
  check_dtype(name, tensor, x.dtype);
  check_unit_stride(name, tensor);
  check_device(name, tensor, x.device);
}

}  // namespace

void linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
            const std::optional<Tensor>& bias, int64_t total_features) {
  check_shape("x", x, {-1, -1}, "[M, K]");
  check_shape("weight", weight, {-1, x.shape[1]}, "[N, K]");
  check_shape("out", out, {x.shape[0], weight.shape[0]}, "[M, N]");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_matrix("weight", weight, x);
  check_matrix("out", out, x);
  if (total_features < weight.shape[0]) {
    fail("total_features: must be at least N = " + std::to_string(weight.shape[0]) + ", got " +
         std::to_string(total_features));
  }
  LinearParams p{};
  if (bias) {
    check_shape("bias", *bias, {weight.shape[0]}, "[N]");
    check_dtype("bias", *bias, x.dtype);
    check_contiguous("bias", *bias);
    check_device("bias", *bias, x.device);
    p.bias = bias->data;
  }
  p.out = out.data;
  p.x = x.data;
  p.weight = weight.data;
  p.out_stride = out.stride[0];
  p.x_stride = x.stride[0];
  p.weight_stride = weight.stride[0];
  p.num_rows = x.shape[0];
  p.out_features = weight.shape[0];
  p.total_features = total_features;
  p.in_features = x.shape[1];
  p.dtype = x.dtype;
  backend.linear(p);
}

}  // namespace quire::ops

#endif
