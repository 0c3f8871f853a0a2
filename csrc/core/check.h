// Checks of arguments. Each throws std::invalid_argument with the argument's name and the values
// that disagree.
#pragma once

#include <initializer_list>
#include <string>

#include "core/tensor.h"

namespace quire {

[[noreturn]] void fail(const std::string& message);

const char* dtype_name(DType dtype);
int64_t element_size(DType dtype);
std::string shape_text(const Tensor& tensor);

// `what` describes the expected shape, e.g. "[T, Hkv, D]"; -1 accepts any size.
void check_shape(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 const char* what);
void check_dtype(const char* name, const Tensor& tensor, DType dtype);
// float32, bfloat16 or float16.
void check_activation_dtype(const char* name, const Tensor& tensor);
void check_device(const char* name, const Tensor& tensor, Device device);
// Unit stride along the last dimension.
void check_unit_stride(const char* name, const Tensor& tensor);
void check_contiguous(const char* name, const Tensor& tensor);

// value in [begin, end)
void check_range(const std::string& name, int64_t value, int64_t begin, int64_t end);

}  // namespace quire
