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
  int64_t num_parts;       // that K is cut into; 1, 2, 4 or 8
  int64_t total_parts;     // of the whole layer; the others are computed elsewhere
  DType dtype;             // of x and the weights
  bool out_is_float;       // or of the type of x
};

// A layer of one part for each head.
struct HeadLinearParams {
  LinearParams head;  // the first one's
  int64_t num_heads;
  int64_t out_head_stride;
  int64_t x_head_stride;
  int64_t weight_head_stride;
};

// Weights of 8 or 4 bits as cuda/linear/weight_only_tile.cuh reads them: ceil(N / 16) tiles of 16
// features, cut along each part of K into steps of 64 elements. A step of a tile holds what each
// lane of a tensor core's operand takes; scales and zeros lie beside.
constexpr int64_t kOperandFeatures = 16;
constexpr int64_t kOperandStep = 64;

struct WeightOnlyLinearParams : LinearParams {  // `weight` is packed, `weight_stride` 0
  const void* scales;  // [ceil(N / 16), K / group_size, 16, 2] float32: scale, 2^23 + zero
  int64_t group_size;  // elements of K with the same scale: 32, 64 or 128
  int64_t bits;        // 8 or 4
  bool is_float;       // e4m3, of 8 bits and no zeros, or integers
};

// Weights as cpu/kernels/linear.h reads them: panels of kPanelFeatures features, in each of them
// pairs of elements of K. N is rounded up to whole panels and K to pairs, with zeros.
constexpr int64_t kPanelFeatures = 32;

struct PackWeightParams {
  void* packed;
  const void* weight;  // [N, K]
  int64_t weight_stride;
  int64_t out_features;  // N
  int64_t in_features;   // K
  DType dtype;
};

// Weights of int8 as cpu/kernels/linear_int8.h and cuda/linear/int8_tile.cuh read them: panels as
// above, in each of them for each part of K fours of its elements, with zeros at the end, and then
// the float32 scales of the features. Sums of longer parts would not fit into int32.
constexpr int64_t kInt8Four = 4;
constexpr int64_t kMaxInt8Part = 1 << 17;

// Weights of 8 or 4 bits as GroupedOperands reads them: panels as pack_weight makes them, cut along
// K into groups. In each of them lie pairs of integers, of 4 bits the first 32 in the lower halves
// of bytes and the others in the upper ones; then 32 float32 scales and 32 zeros in int8.
constexpr int64_t grouped_bytes(int64_t group_size, int64_t bits) {
  return group_size * kPanelFeatures * bits / 8 + kPanelFeatures * 5;
}

struct PackedLinearParams {
  void* out;           // [M, N]
  const void* x;       // [M, K]
  const void* weight;  // packed
  const float* bias;   // [N], or null
  int64_t out_stride;
  int64_t x_stride;
  int64_t num_rows;      // M
  int64_t out_features;  // N
  int64_t in_features;   // K
  int64_t num_parts;     // that K is cut into; 1, 2, 4 or 8
  DType dtype;           // of x and the weights
  bool out_is_float;     // or of the type of x
  int64_t group_size;    // elements of K of a group; of grouped_linear alone, as bits
  int64_t bits;          // 8 or 4
};

// A layer of each head by itself, whose results are of the type of x.
struct PackedHeadLinearParams {
  PackedLinearParams head;  // the first
  int64_t num_heads;
  int64_t out_head_stride;
  int64_t x_head_stride;
  int64_t weight_head_stride;
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)

#include <tuple>

#include "core/check.h"
#include "ops/ops.h"

namespace quire::ops {
namespace {

// A matrix on x's device, unit stride along its rows.
void check_matrix(const char* name, const Tensor& tensor, const Tensor& x, DType dtype) {
  check_dtype(name, tensor, dtype);
  check_unit_stride(name, tensor);
  check_device(name, tensor, x.device);
}

// All but the weights. Sets `p`.
void take_linear_operands(const Tensor& out, const Tensor& x, const std::optional<Tensor>& bias,
                          int64_t total_features, int64_t num_parts, int64_t total_parts,
                          LinearParams& p) {
  check_shape("x", x, {-1, -1}, "[M, K]");
  check_shape("out", out, {x.shape[0], -1}, "[M, N]");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_matrix("out", out, x, out.dtype == DType::kFloat32 ? out.dtype : x.dtype);
  check_range("x: K", x.shape[1], 0, int64_t{1} << 31);
  const bool is_cut = num_parts == 2 || num_parts == 4 || num_parts == 8;
  if (num_parts != 1 && !(is_cut && x.shape[1] % num_parts == 0)) {
    fail("num_parts: must be 1, 2, 4 or 8 and divide K = " + std::to_string(x.shape[1]) + ", got " +
         std::to_string(num_parts));
  }
  if (total_parts < num_parts) {
    fail("total_parts: must be at least num_parts = " + std::to_string(num_parts) + ", got " +
         std::to_string(total_parts));
  }
  if (total_features < out.shape[1]) {
    fail("total_features: must be at least N = " + std::to_string(out.shape[1]) + ", got " +
         std::to_string(total_features));
  }
  if (bias) {
    check_shape("bias", *bias, {out.shape[1]}, "[N]");
    check_dtype("bias", *bias, x.dtype);
    check_contiguous("bias", *bias);
    check_device("bias", *bias, x.device);
    p.bias = bias->data;
  }
  p.out = out.data;
  p.x = x.data;
  p.out_stride = out.stride[0];
  p.x_stride = x.stride[0];
  p.num_rows = x.shape[0];
  p.out_features = out.shape[1];
  p.total_features = total_features;
  p.in_features = x.shape[1];
  p.num_parts = num_parts;
  p.total_parts = total_parts;
  p.dtype = x.dtype;
  p.out_is_float = out.dtype == DType::kFloat32;
}

// Packed weights and their scales, for the sizes that `p` has. Sets the rest of it.
void take_weight_only(const Tensor& packed, const Tensor& scales, int64_t bits, const Tensor& x,
                      WeightOnlyLinearParams& p) {
  if (bits != 8 && bits != 4) fail("bits: must be 8 or 4, got " + std::to_string(bits));
  p.is_float = packed.dtype == DType::kFloat8E4M3;
  if (p.is_float && bits != 8)
    fail("bits: must be 8 of float8_e4m3fn, got " + std::to_string(bits));
  const int64_t tiles = (p.out_features + kOperandFeatures - 1) / kOperandFeatures;
  check_shape("scales", scales, {tiles, -1, kOperandFeatures, 2},
              "[ceil(N / 16), K / group size, 16, 2]");
  p.group_size = scales.shape[1] == 0 ? 0 : p.in_features / scales.shape[1];
  const bool is_size = p.group_size == 32 || p.group_size == 64 || p.group_size == 128;
  if (!is_size || p.in_features % (p.group_size * p.num_parts) != 0) {
    fail("scales: must be of groups of 32, 64 or 128 of K / num_parts = " +
         std::to_string(p.in_features / p.num_parts) + ", got " + std::to_string(scales.shape[1]));
  }
  const int64_t part_steps = (p.in_features / p.num_parts + kOperandStep - 1) / kOperandStep;
  check_shape("packed", packed,
              {tiles, p.num_parts * part_steps, kOperandFeatures * kOperandStep * bits / 8},
              "[ceil(N / 16), P * ceil(K / P / 64), 128 * bits]");
  for (const auto& [name, tensor, dtype] :
       {std::tuple<const char*, const Tensor&, DType>{"packed", packed,
                                                      p.is_float ? packed.dtype : DType::kInt8},
        {"scales", scales, DType::kFloat32}}) {
    check_dtype(name, tensor, dtype);
    check_contiguous(name, tensor);
    check_device(name, tensor, x.device);
  }
  p.weight = packed.data;
  p.scales = scales.data;
  p.bits = bits;
}

}  // namespace

void linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
            const std::optional<Tensor>& bias, int64_t total_features, int64_t num_parts,
            int64_t total_parts) {
  LinearParams p{};
  take_linear_operands(out, x, bias, total_features, num_parts, total_parts, p);
  check_shape("weight", weight, {p.out_features, p.in_features}, "[N, K]");
  check_matrix("weight", weight, x, x.dtype);
  p.weight = weight.data;
  p.weight_stride = weight.stride[0];
  backend.linear(p);
}

void head_linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight) {
  check_shape("x", x, {-1, -1, -1}, "[T, H, K]");
  check_shape("out", out, {x.shape[0], x.shape[1], -1}, "[T, H, N]");
  check_shape("weight", weight, {x.shape[1], out.shape[2], x.shape[2]}, "[H, N, K]");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_matrix("out", out, x, x.dtype);
  check_matrix("weight", weight, x, x.dtype);
  check_range("x: K", x.shape[2], 0, int64_t{1} << 31);
  HeadLinearParams p{};
  p.head.out = out.data;
  p.head.x = x.data;
  p.head.weight = weight.data;
  p.head.out_stride = out.stride[0];
  p.head.x_stride = x.stride[0];
  p.head.weight_stride = weight.stride[1];
  p.head.num_rows = x.shape[0];
  p.head.out_features = p.head.total_features = out.shape[2];
  p.head.in_features = x.shape[2];
  p.head.num_parts = p.head.total_parts = 1;
  p.head.dtype = x.dtype;
  p.num_heads = x.shape[1];
  p.out_head_stride = out.stride[1];
  p.x_head_stride = x.stride[1];
  p.weight_head_stride = weight.stride[0];
  backend.head_linear(p);
}

void weight_only_linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& packed,
                        const Tensor& scales, const std::optional<Tensor>& bias,
                        int64_t total_features, int64_t num_parts, int64_t total_parts,
                        int64_t bits) {
  if (x.dtype == DType::kFloat32) fail("x: must be bfloat16 or float16, got float32");
  WeightOnlyLinearParams p{};
  take_linear_operands(out, x, bias, total_features, num_parts, total_parts, p);
  take_weight_only(packed, scales, bits, x, p);
  backend.weight_only_linear(p);
}

namespace {

void check_packed(const Tensor& packed, int64_t out_features, int64_t in_features, DType dtype) {
  const int64_t panels = (out_features + kPanelFeatures - 1) / kPanelFeatures;
  check_shape("packed", packed, {panels, (in_features + 1) / 2, 2 * kPanelFeatures},
              "[ceil(N / 32), ceil(K / 2), 64]");
  check_dtype("packed", packed, dtype);
  check_contiguous("packed", packed);
  check_device("packed", packed, Device::kCpu);
}

}  // namespace

void pack_weight(Backend& backend, const Tensor& packed, const Tensor& weight) {
  check_shape("weight", weight, {-1, -1}, "[N, K]");
  check_activation_dtype("weight", weight);
  check_unit_stride("weight", weight);
  check_device("weight", weight, Device::kCpu);
  check_packed(packed, weight.shape[0], weight.shape[1], weight.dtype);
  backend.pack_weight(
      {packed.data, weight.data, weight.stride[0], weight.shape[0], weight.shape[1], weight.dtype});
}

namespace {

// What packed_linear and its kin are given, but for the weights.
PackedLinearParams packed_linear_params(const Tensor& out, const Tensor& x, const Tensor& packed,
                                        const std::optional<Tensor>& bias, int64_t num_parts) {
  check_shape("x", x, {-1, -1}, "[M, K]");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_shape("out", out, {x.shape[0], -1}, "[M, N]");
  check_unit_stride("out", out);
  check_device("out", out, x.device);
  if (out.dtype != DType::kFloat32) check_dtype("out", out, x.dtype);
  const bool is_cut = num_parts == 2 || num_parts == 4 || num_parts == 8;
  if (num_parts != 1 && !(is_cut && x.shape[1] % (2 * num_parts) == 0)) {
    fail("num_parts: must be 1, 2, 4 or 8 and divide K / 2 = " + std::to_string(x.shape[1]) +
         " / 2, got " + std::to_string(num_parts));
  }
  PackedLinearParams p{};
  if (bias) {
    check_shape("bias", *bias, {out.shape[1]}, "[N]");
    check_dtype("bias", *bias, DType::kFloat32);
    check_contiguous("bias", *bias);
    check_device("bias", *bias, x.device);
    p.bias = static_cast<const float*>(bias->data);
  }
  p.out = out.data;
  p.x = x.data;
  p.weight = packed.data;
  p.out_stride = out.stride[0];
  p.x_stride = x.stride[0];
  p.num_rows = x.shape[0];
  p.out_features = out.shape[1];
  p.in_features = x.shape[1];
  p.num_parts = num_parts;
  p.dtype = x.dtype;
  p.out_is_float = out.dtype == DType::kFloat32;
  return p;
}

}  // namespace

void packed_linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& packed,
                   const std::optional<Tensor>& bias, int64_t num_parts) {
  const PackedLinearParams p = packed_linear_params(out, x, packed, bias, num_parts);
  check_device("x", x, Device::kCpu);
  check_packed(packed, p.out_features, p.in_features, p.dtype);
  backend.packed_linear(p);
}

void packed_head_linear(Backend& backend, const Tensor& out, const Tensor& x,
                        const Tensor& packed) {
  check_shape("x", x, {-1, -1, -1}, "[T, H, K]");
  check_shape("out", out, {x.shape[0], x.shape[1], -1}, "[T, H, N]");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_matrix("out", out, x, x.dtype);
  check_device("x", x, Device::kCpu);
  const int64_t panels = (out.shape[2] + kPanelFeatures - 1) / kPanelFeatures;
  check_shape("packed", packed, {x.shape[1], panels, (x.shape[2] + 1) / 2, 2 * kPanelFeatures},
              "[H, ceil(N / 32), ceil(K / 2), 64]");
  check_matrix("packed", packed, x, x.dtype);
  check_contiguous("packed", packed);
  PackedHeadLinearParams p{};
  p.head.out = out.data;
  p.head.x = x.data;
  p.head.weight = packed.data;
  p.head.out_stride = out.stride[0];
  p.head.x_stride = x.stride[0];
  p.head.num_rows = x.shape[0];
  p.head.out_features = out.shape[2];
  p.head.in_features = x.shape[2];
  p.head.num_parts = 1;
  p.head.dtype = x.dtype;
  p.num_heads = x.shape[1];
  p.out_head_stride = out.stride[1];
  p.x_head_stride = x.stride[1];
  p.weight_head_stride = packed.stride[0];
  backend.packed_head_linear(p);
}

void grouped_linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& packed,
                    const std::optional<Tensor>& bias, int64_t num_parts, int64_t bits) {
  PackedLinearParams p = packed_linear_params(out, x, packed, bias, num_parts);
  if (bits != 8 && bits != 4) fail("bits: must be 8 or 4, got " + std::to_string(bits));
  const int64_t panels = (p.out_features + kPanelFeatures - 1) / kPanelFeatures;
  check_shape("packed", packed, {panels, -1, -1}, "[ceil(N / 32), K / group size, bytes]");
  p.bits = bits;
  p.group_size = packed.shape[1] == 0 ? 0 : p.in_features / packed.shape[1];
  const bool is_size = p.group_size == 32 || p.group_size == 64 || p.group_size == 128;
  if (!is_size || p.in_features % (p.group_size * num_parts) != 0 ||
      packed.shape[2] != grouped_bytes(p.group_size, bits)) {
    fail("packed: must be groups of 32, 64 or 128 of K / num_parts = " +
         std::to_string(p.in_features / num_parts) + ", got " + std::to_string(packed.shape[1]) +
         " groups of " + std::to_string(packed.shape[2]) + " bytes");
  }
  check_dtype("packed", packed, DType::kInt8);
  check_contiguous("packed", packed);
  check_device("packed", packed, Device::kCpu);
  backend.grouped_linear(p);
}

void int8_linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& packed,
                 const std::optional<Tensor>& bias, int64_t num_parts) {
  const PackedLinearParams p = packed_linear_params(out, x, packed, bias, num_parts);
  const int64_t part = p.in_features / num_parts;
  if (part > kMaxInt8Part) {
    fail("x: K / num_parts must be at most " + std::to_string(kMaxInt8Part) + ", got " +
         std::to_string(part));
  }
  const int64_t steps = num_parts * ((part + kInt8Four - 1) / kInt8Four + 1);
  check_shape(
      "packed", packed,
      {(p.out_features + kPanelFeatures - 1) / kPanelFeatures, steps, kInt8Four * kPanelFeatures},
      "[ceil(N / 32), P * (ceil(K / P / 4) + 1), 128]");
  check_dtype("packed", packed, DType::kInt8);
  check_contiguous("packed", packed);
  check_device("packed", packed, x.device);
  backend.int8_linear(p);
}

}  // namespace quire::ops

#endif
