// From logits to tokens: what the kernels are given, and the checks of their arguments.
#pragma once

#include "core/params.h"

namespace quire {

// Penalties of tokens that a sequence holds already.
struct PenaltyParams {
  float* logits;             // [N, V]
  const int32_t* token_ids;  // [N, L], of the prompt, then of the output
  int64_t row_stride;
  int64_t token_stride;
  int64_t num_rows;
  int64_t vocab_size;
  const int32_t* num_prompt_tokens;  // [N]
  const int32_t* num_tokens;         // [N], prompt and output
  const float* repetition;           // [N], 1 = off
  const float* frequency;            // [N], 0 = off
  const float* presence;             // [N], 0 = off
};

struct TokenMaskParams {
  float* logits;           // [N, V]
  const int32_t* bitmask;  // [N, ceil(V / 32)], bit i % 32 of word i / 32 is of token i
  int64_t row_stride;
  int64_t mask_stride;
  int64_t num_rows;
  int64_t vocab_size;
};

struct SoftCapParams {
  float* logits;  // [N, V]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  float cap;
};

constexpr int kMaxTopLogprobs = 1024;

struct TopLogprobsParams {
  const float* logits;       // [N, V]
  const int64_t* token_ids;  // [N]
  float* logprobs;           // [N]
  int64_t* ranks;            // [N], from 1
  int64_t* top_token_ids;    // [N, K]
  float* top_logprobs;       // [N, K]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  int64_t num_top;  // K
};

struct SampleParams {
  const float* logits;  // [N, V]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  const float* temperature;       // [N], 0 = greedy
  const int32_t* top_k;           // [N], 0 = off
  const float* top_p;             // [N], 1 = off
  const float* min_p;             // [N], 0 = off
  const int64_t* seed;            // [N], bits of a uint64
  const int32_t* sequence_index;  // [N]
  const int64_t* position;        // [N]
  int64_t* token_ids;             // [N]
  bool* ok;                       // [N]
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)
#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "ops/ops.h"

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
    fail(std::string(name) + "[" + std::to_string(i) + "]: must be in [" + std::to_string(low) +
         ", " + std::to_string(high) + "], got " + std::to_string(values[i]));
  }
}

void check_values(const SampleParams& p) {
  check_between("temperature", p.temperature, p.num_rows, 0.f, 3.4e38f);
  check_between("top_p", p.top_p, p.num_rows, 0.f, 1.f);
  check_between("min_p", p.min_p, p.num_rows, 0.f, 1.f);
  for (int64_t i = 0; i < p.num_rows; ++i) {
    if (p.top_k[i] >= 0) continue;
    fail("top_k[" + std::to_string(i) + "]: must not be negative, got " +
         std::to_string(p.top_k[i]));
  }
}

// logits [N, V], with at least one column.
void check_logits(const Tensor& logits) {
  check_shape("logits", logits, {-1, -1}, "[N, V]");
  check_dtype("logits", logits, DType::kFloat32);
  check_unit_stride("logits", logits);
  if (logits.shape[1] < 1) fail("logits: must have at least one column, got " + shape_text(logits));
}

std::string element_name(const char* name, int64_t row) {
  return std::string(name) + "[" + std::to_string(row) + "]";
}

void check_values(const PenaltyParams& p, int64_t max_tokens) {
  check_between("frequency_penalty", p.frequency, p.num_rows, -3.4e38f, 3.4e38f);
  check_between("presence_penalty", p.presence, p.num_rows, -3.4e38f, 3.4e38f);
  for (int64_t i = 0; i < p.num_rows; ++i) {
    if (!(p.repetition[i] > 0.f && p.repetition[i] <= 3.4e38f)) {
      fail(element_name("repetition_penalty", i) + ": must be positive and finite, got " +
           std::to_string(p.repetition[i]));
    }
    check_range(element_name("num_tokens", i), p.num_tokens[i], 0, max_tokens + 1);
    check_range(element_name("num_prompt_tokens", i), p.num_prompt_tokens[i], 0, max_tokens + 1);
    for (int64_t j = 0; j < p.num_tokens[i]; ++j) {
      const int32_t token_id = p.token_ids[i * p.token_stride + j];
      if (token_id >= 0 && token_id < p.vocab_size) continue;
      check_range(element_name("token_ids", i) + "[" + std::to_string(j) + "]", token_id, 0,
                  p.vocab_size);
    }
  }
}

// Contiguous [N, K].
void check_top(const char* name, const Tensor& tensor, DType dtype, const Tensor& logits,
               int64_t num_top) {
  check_shape(name, tensor, {logits.shape[0], num_top}, "[N, K]");
  check_dtype(name, tensor, dtype);
  check_contiguous(name, tensor);
  check_device(name, tensor, logits.device);
}

}  // namespace

void apply_penalties(Backend& backend, const Tensor& logits, const Tensor& token_ids,
                     const Tensor& num_prompt_tokens, const Tensor& num_tokens,
                     const Tensor& repetition_penalty, const Tensor& frequency_penalty,
                     const Tensor& presence_penalty) {
  check_logits(logits);
  check_shape("token_ids", token_ids, {logits.shape[0], -1}, "[N, L]");
  check_dtype("token_ids", token_ids, DType::kInt32);
  check_unit_stride("token_ids", token_ids);
  check_device("token_ids", token_ids, logits.device);
  PenaltyParams p{};
  p.logits = static_cast<float*>(logits.data);
  p.token_ids = static_cast<const int32_t*>(token_ids.data);
  p.row_stride = logits.stride[0];
  p.token_stride = token_ids.stride[0];
  p.num_rows = logits.shape[0];
  p.vocab_size = logits.shape[1];
  p.num_prompt_tokens =
      row_values<int32_t>("num_prompt_tokens", num_prompt_tokens, DType::kInt32, logits);
  p.num_tokens = row_values<int32_t>("num_tokens", num_tokens, DType::kInt32, logits);
  p.repetition =
      row_values<float>("repetition_penalty", repetition_penalty, DType::kFloat32, logits);
  p.frequency = row_values<float>("frequency_penalty", frequency_penalty, DType::kFloat32, logits);
  p.presence = row_values<float>("presence_penalty", presence_penalty, DType::kFloat32, logits);
  if (logits.device == Device::kCpu) check_values(p, token_ids.shape[1]);
  backend.apply_penalties(p);
}

void apply_token_mask(Backend& backend, const Tensor& logits, const Tensor& bitmask) {
  check_logits(logits);
  check_shape("bitmask", bitmask, {logits.shape[0], (logits.shape[1] + 31) / 32},
              "[N, ceil(V / 32)]");
  check_dtype("bitmask", bitmask, DType::kInt32);
  check_unit_stride("bitmask", bitmask);
  check_device("bitmask", bitmask, logits.device);
  TokenMaskParams p{};
  p.logits = static_cast<float*>(logits.data);
  p.bitmask = static_cast<const int32_t*>(bitmask.data);
  p.row_stride = logits.stride[0];
  p.mask_stride = bitmask.stride[0];
  p.num_rows = logits.shape[0];
  p.vocab_size = logits.shape[1];
  backend.apply_token_mask(p);
}

void apply_soft_cap(Backend& backend, const Tensor& logits, double cap) {
  check_logits(logits);
  if (!(cap > 0 && std::isfinite(cap)))
    fail("cap: must be positive and finite, got " + std::to_string(cap));
  SoftCapParams p{};
  p.logits = static_cast<float*>(logits.data);
  p.row_stride = logits.stride[0];
  p.num_rows = logits.shape[0];
  p.vocab_size = logits.shape[1];
  p.cap = static_cast<float>(cap);
  backend.apply_soft_cap(p);
}

void top_logprobs(Backend& backend, const Tensor& logprobs, const Tensor& ranks,
                  const Tensor& top_token_ids, const Tensor& top_logprobs, const Tensor& logits,
                  const Tensor& token_ids) {
  // More weights would not fit their sum.
  constexpr int64_t kMaxVocabSize = 1 << 20;
  check_logits(logits);
  check_range("logits: number of columns", logits.shape[1], 1, kMaxVocabSize + 1);
  check_shape("top_token_ids", top_token_ids, {logits.shape[0], -1}, "[N, K]");
  const int64_t num_top = top_token_ids.shape[1];
  check_range("top_token_ids: number of columns", num_top, 0,
              std::min<int64_t>(logits.shape[1], kMaxTopLogprobs) + 1);
  check_top("top_token_ids", top_token_ids, DType::kInt64, logits, num_top);
  check_top("top_logprobs", top_logprobs, DType::kFloat32, logits, num_top);
  TopLogprobsParams p{};
  p.logits = static_cast<const float*>(logits.data);
  p.token_ids = row_values<int64_t>("token_ids", token_ids, DType::kInt64, logits);
  p.logprobs = const_cast<float*>(row_values<float>("logprobs", logprobs, DType::kFloat32, logits));
  p.ranks = const_cast<int64_t*>(row_values<int64_t>("ranks", ranks, DType::kInt64, logits));
  p.top_token_ids = static_cast<int64_t*>(top_token_ids.data);
  p.top_logprobs = static_cast<float*>(top_logprobs.data);
  p.row_stride = logits.stride[0];
  p.num_rows = logits.shape[0];
  p.vocab_size = logits.shape[1];
  p.num_top = num_top;
  if (logits.device == Device::kCpu) {
    for (int64_t i = 0; i < p.num_rows; ++i)
      check_range(element_name("token_ids", i), p.token_ids[i], 0, p.vocab_size);
  }
  backend.top_logprobs(p);
}

void sample(Backend& backend, const Tensor& token_ids, const Tensor& ok, const Tensor& logits,
            const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
            const Tensor& min_p, const Tensor& seed, const Tensor& sequence_index,
            const Tensor& position) {
  check_logits(logits);
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
  // Values on a GPU cannot be read without waiting for it.
  if (logits.device == Device::kCpu) check_values(p);
  backend.sample(p);
}

}  // namespace quire::ops

#endif
