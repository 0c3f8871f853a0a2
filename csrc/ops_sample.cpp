// Checks of sampling.
#include <cmath>
#include <string>

#include "check.h"
#include "ops.h"

namespace quire::ops {
namespace {

template <typename T>
const T* row_values(const char* name, const Tensor& tensor, DType dtype, const Tensor& logits) {
  check_shape(name, tensor, {logits.shape[0]}, "[N]");
  check_dtype(name, tensor, dtype);
  check_contiguous(name, tensor);
  check_device(name, tensor, logits.device);
  return static_cast<const T*>(tensor.data);
}

// Written so that NaN fails.
void check_between(const char* name, const float* values, int64_t rows, float low, float high) {
  for (int64_t i = 0; i < rows; ++i) {
    if (values[i] >= low && values[i] <= high) continue;
    fail(std::string(name) + "[" + std::to_string(i) + "] must be in [" + std::to_string(low) +
         ", " + std::to_string(high) + "], got " + std::to_string(values[i]));
  }
}

void check_values(const SampleParams& p) {
  check_between("temperature", p.temperature, p.num_rows, 0.f, 3.4e38f);
  check_between("top_p", p.top_p, p.num_rows, 0.f, 1.f);
  check_between("min_p", p.min_p, p.num_rows, 0.f, 1.f);
  for (int64_t i = 0; i < p.num_rows; ++i) {
    if (p.top_k[i] >= 0) continue;
    fail("top_k[" + std::to_string(i) + "] must not be negative, got " +
         std::to_string(p.top_k[i]));
  }
}

}  // namespace

void sample(Backend& backend, const Tensor& token_ids, const Tensor& ok, const Tensor& logits,
            const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
            const Tensor& min_p, const Tensor& seed, const Tensor& sequence_index,
            const Tensor& position) {
  check_shape("logits", logits, {-1, -1}, "[N, V]");
  check_dtype("logits", logits, DType::kFloat32);
  check_unit_stride("logits", logits);
  if (logits.shape[1] < 1) fail("logits must have at least one column, got " + shape_text(logits));

  SampleParams p{};
  p.logits = static_cast<const float*>(logits.data);
  p.row_stride = logits.stride[0];
  p.num_rows = logits.shape[0];
  p.vocab_size = logits.shape[1];
  p.temperature = row_values<float>("temperature", temperature, DType::kFloat32, logits);
  p.top_k = row_values<int32_t>("top_k", top_k, DType::kInt32, logits);
  p.top_p = row_values<float>("top_p", top_p, DType::kFloat32, logits);
  p.min_p = row_values<float>("min_p", min_p, DType::kFloat32, logits);
  p.seed = row_values<int64_t>("seed", seed, DType::kInt64, logits);
  p.sequence_index = row_values<int32_t>("sequence_index", sequence_index, DType::kInt32, logits);
  p.position = row_values<int64_t>("position", position, DType::kInt64, logits);
  p.token_ids =
      const_cast<int64_t*>(row_values<int64_t>("token_ids", token_ids, DType::kInt64, logits));
  p.ok = const_cast<bool*>(row_values<bool>("ok", ok, DType::kBool, logits));
  // What lies on a GPU cannot be looked at without waiting for it.
  if (logits.device == Device::kCpu) check_values(p);
  backend.sample(p);
}

}  // namespace quire::ops
