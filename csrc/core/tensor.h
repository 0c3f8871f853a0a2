// A tensor as the bindings pass it: a pointer with its shape, strides and element type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// No kernel takes float64: it is here so that the checks can name the argument that has it.
enum class DType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kFloat8E4M3,  // torch.float8_e4m3fn
  kInt8,
  kInt32,
  kInt64,
  kBool
};

enum class Device : uint8_t { kCpu, kCuda };

constexpr int kMaxDims = 5;

struct Tensor {
  void* data;
  DType dtype;
  Device device;
  int ndim;
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];  // in elements
};

}  // namespace quire
