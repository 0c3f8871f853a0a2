#include "core/check.h"

#include <stdexcept>

#include "core/dispatch.h"

namespace quire {

void dispatch_failed(const char* axis, int value) {
  throw std::logic_error(std::string("no kernel for ") + axis + " " + std::to_string(value));
}

void fail(const std::string& message) {
  throw std::invalid_argument(message);
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat8E4M3:
      return "float8_e4m3fn";
    case DType::kInt8:
      return "int8";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kBool:
      return "bool";
  }
  dispatch_failed("dtype", static_cast<int>(dtype));
}

int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat8E4M3:
    case DType::kInt8:
    case DType::kBool:
      return 1;
  }
  dispatch_failed("dtype", static_cast<int>(dtype));
}

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.ndim; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  return text + "]";
}

void check_shape(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 const char* what) {
  bool same = tensor.ndim == static_cast<int>(shape.size());
  if (same) {
    int i = 0;
    for (const int64_t size : shape) {
      same = same && (size == -1 || size == tensor.shape[i]);
      ++i;
    }
  }
  if (same) return;
  std::string wanted = "[";
  for (const int64_t size : shape) {
    wanted += wanted.size() == 1 ? "" : ", ";
    wanted += size == -1 ? "any" : std::to_string(size);
  }
  fail(std::string(name) + ": must be " + what + " = " + wanted + "], got " + shape_text(tensor));
}

void check_dtype(const char* name, const Tensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) return;
  fail(std::string(name) + ": must be " + dtype_name(dtype) + ", got " + dtype_name(tensor.dtype));
}

void check_activation_dtype(const char* name, const Tensor& tensor) {
  if (tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kBFloat16 ||
      tensor.dtype == DType::kFloat16)
    return;
  fail(std::string(name) + ": must be float32, bfloat16 or float16, got " +
       dtype_name(tensor.dtype));
}

void check_device(const char* name, const Tensor& tensor, Device device) {
  if (tensor.device == device) return;
  fail(std::string(name) + ": must be on the " + (device == Device::kCpu ? "CPU" : "GPU"));
}

void check_unit_stride(const char* name, const Tensor& tensor) {
  const int last = tensor.ndim - 1;
  if (last < 0 || tensor.shape[last] <= 1 || tensor.stride[last] == 1) return;
  fail(std::string(name) + ": must have stride 1 in its last dimension, got " +
       std::to_string(tensor.stride[last]));
}

void check_contiguous(const char* name, const Tensor& tensor) {
  for (int i = 0; i < tensor.ndim; ++i)
    if (tensor.shape[i] == 0) return;  // without elements any stride will do
  int64_t expected = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] > 1 && tensor.stride[i] != expected) {
      fail(std::string(name) + ": must be contiguous, got stride " +
           std::to_string(tensor.stride[i]) + " in dimension " + std::to_string(i));
    }
    expected *= tensor.shape[i];
  }
}

void check_range(const std::string& name, int64_t value, int64_t begin, int64_t end) {
  if (value >= begin && value < end) return;
  fail(name + ": must be in [" + std::to_string(begin) + ", " + std::to_string(end) + "), got " +
       std::to_string(value));
}

}  // namespace quire
