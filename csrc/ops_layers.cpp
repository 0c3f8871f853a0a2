// Checks of norms, rotary embedding and activations.
#include <string>

#include "check.h"
#include "ops.h"

namespace quire::ops {
namespace {

// x and `other` are [M, N] or [M, H, N] of one shape and dtype, unit stride along N.
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
  if (x.ndim != 2 && x.ndim != 3) fail("x must be [M, N] or [M, H, N], got " + shape_text(x));
  check_activation_dtype("x", x);
  check_vector("weight", weight, x);
  if (!(eps >= 0)) fail("eps must not be negative, got " + std::to_string(eps));
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

void rotary_embedding(Backend& backend, const Tensor& positions, const Tensor& query,
                      const Tensor& key, const Tensor& cos_sin_cache, bool is_neox) {
  check_shape("query", query, {-1, -1, -1}, "[T, H, D]");
  check_shape("key", key, {query.shape[0], -1, query.shape[2]}, "[T, Hkv, D]");
  check_shape("positions", positions, {query.shape[0]}, "[T]");
  check_shape("cos_sin_cache", cos_sin_cache, {-1, -1}, "[P, R]");
  check_activation_dtype("query", query);
  check_dtype("key", key, query.dtype);
  check_dtype("positions", positions, DType::kInt64);
  check_dtype("cos_sin_cache", cos_sin_cache, DType::kFloat32);
  check_unit_stride("query", query);
  check_unit_stride("key", key);
  check_unit_stride("cos_sin_cache", cos_sin_cache);
  check_contiguous("positions", positions);
  check_device("key", key, query.device);
  check_device("positions", positions, query.device);
  check_device("cos_sin_cache", cos_sin_cache, query.device);
  const int64_t rotary_dim = cos_sin_cache.shape[1];
  if (rotary_dim % 2 != 0 || rotary_dim > query.shape[2]) {
    fail("cos_sin_cache's " + std::to_string(rotary_dim) +
         " columns must be even and at most the head size " + std::to_string(query.shape[2]));
  }
  const auto* position = static_cast<const int64_t*>(positions.data);
  // What lies on a GPU cannot be looked at without waiting for it.
  const int64_t num_checked = query.device == Device::kCpu ? positions.shape[0] : 0;
  for (int64_t i = 0; i < num_checked; ++i) {
    if (position[i] >= 0 && position[i] < cos_sin_cache.shape[0]) continue;
    check_range("positions[" + std::to_string(i) + "]", position[i], 0, cos_sin_cache.shape[0]);
  }

  RotaryParams p{};
  p.query = {query.data, query.stride[0], query.stride[1]};
  p.key = {key.data, key.stride[0], key.stride[1]};
  p.positions = position;
  p.cos_sin_cache = static_cast<const float*>(cos_sin_cache.data);
  p.cos_sin_stride = cos_sin_cache.stride[0];
  p.num_tokens = query.shape[0];
  p.num_heads = query.shape[1];
  p.num_kv_heads = key.shape[1];
  p.rotary_dim = rotary_dim;
  p.is_neox = is_neox;
  p.dtype = query.dtype;
  backend.rotary_embedding(p);
}

void activation(Backend& backend, const Tensor& out, const Tensor& x, Activation activation,
                bool gated) {
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
  p.activation = activation;
  p.dtype = x.dtype;
  backend.activation(p);
}

}  // namespace quire::ops
