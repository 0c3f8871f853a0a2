// Mixtures of experts on a GPU: what their kernels are given, and the checks of their arguments.
//
// A pair is a row and one of the experts that the router picked for it. Pairs lie in the order of
// their experts, so that a tile of rows has one expert; which rows an expert has is known on the
// device alone.
#pragma once

#include "ops/linear.h"

namespace quire {

constexpr int64_t kMaxExperts = 512;
constexpr int64_t kMaxExpertsOfRow = 32;
constexpr int64_t kMaxExpertGroups = 32;

struct RouteExpertsParams {
  float* weights;      // [M, k]
  int32_t* experts;    // [M, k], ascending in a row
  const void* logits;  // [M, E]
  const float* bias;   // [E], of scores for the choice alone; null without one
  int64_t logits_stride;
  int64_t num_rows;         // M
  int64_t num_experts;      // E
  int64_t num_picked;       // k
  int64_t num_groups;       // of equal size, 1 for none
  int64_t num_kept_groups;  // experts are picked from
  int64_t num_of_group;     // largest scores that a group's is the sum of; 1 or 2
  float scale;              // of the weights, at last
  bool is_sigmoid;          // scores are sigmoids, or a softmax
  bool normalizes;          // the weights of a row add up to `scale`
  DType dtype;              // of the logits
};

// Where pairs lie. Of as many tiles as there may be, those that there are come first.
struct ExpertOrder {
  int32_t* positions;  // [M, k], of each pair
  int32_t* rows;       // [M * k], of the pair at each position
  int32_t* offsets;    // [E + 1], the first position of each expert
  int32_t* tiles;      // [tiles, 2], expert and first position; -1 for none
};

struct OrderExpertsParams {
  ExpertOrder order;
  const int32_t* experts;  // [M, k]
  int64_t num_pairs;       // M * k
  int64_t num_picked;      // k
  int64_t num_experts;     // E
  int64_t num_tiles;
  int64_t tile_rows;  // at most, of a tile
};

// Which rows each expert multiplies.
struct ExpertRows {
  const int32_t* rows;  // [M * k], of x at each position; null if they are positions too
  const int32_t* offsets;
  const int32_t* tiles;
  int64_t part_stride;  // of out, which has the sum of each part
  int64_t num_tiles;
  int64_t tile_rows;
};

struct ExpertLinearParams : ExpertRows {
  LinearParams linear;    // of one expert; rows of out are positions
  int64_t expert_stride;  // of weights
};

struct WeightOnlyExpertsParams : ExpertRows {
  WeightOnlyLinearParams linear;  // as above
  int64_t packed_stride;          // bytes of an expert
  int64_t scales_stride;          // bytes of an expert
};

struct CombineExpertsParams {
  void* out;          // [M, H]
  const float* sums;  // [P, M * k, H]
  const float* weights;
  const int32_t* positions;
  int64_t out_stride;
  int64_t num_rows;    // M
  int64_t num_picked;  // k
  int64_t size;        // H
  int64_t num_parts;   // P
  DType dtype;         // of out
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)
#include <cmath>

namespace quire::ops {
namespace {

void check_whole(const char* name, const Tensor& tensor, DType dtype, const Tensor& like) {
  check_dtype(name, tensor, dtype);
  check_contiguous(name, tensor);
  check_device(name, tensor, like.device);
}

void check_limit(const char* what, int64_t value, int64_t limit) {
  if (value < 1 || value > limit) {
    fail(std::string(what) + ": must be from 1 to " + std::to_string(limit) + ", got " +
         std::to_string(value));
  }
}

}  // namespace

void route_experts(Backend& backend, const Tensor& weights, const Tensor& experts,
                   const Tensor& logits, const std::optional<Tensor>& bias, bool is_sigmoid,
                   bool normalizes, double scale, int64_t num_groups, int64_t num_kept_groups,
                   int64_t num_of_group) {
  check_shape("logits", logits, {-1, -1}, "[M, E]");
  check_activation_dtype("logits", logits);
  check_unit_stride("logits", logits);
  check_shape("weights", weights, {logits.shape[0], -1}, "[M, k]");
  check_shape("experts", experts, {logits.shape[0], weights.shape[1]}, "[M, k]");
  check_whole("weights", weights, DType::kFloat32, logits);
  check_whole("experts", experts, DType::kInt32, logits);
  check_limit("logits: experts", logits.shape[1], kMaxExperts);
  check_limit("weights: experts of a row", weights.shape[1],
              std::min(kMaxExpertsOfRow, logits.shape[1]));
  if (bias) {
    check_shape("bias", *bias, {logits.shape[1]}, "[E]");
    check_whole("bias", *bias, DType::kFloat32, logits);
  }
  check_limit("num_groups", num_groups, kMaxExpertGroups);
  const int64_t group_size = logits.shape[1] / num_groups;
  if (group_size * num_groups != logits.shape[1]) {
    fail("num_groups: must divide E = " + std::to_string(logits.shape[1]) + ", got " +
         std::to_string(num_groups));
  }
  check_limit("num_kept_groups", num_kept_groups, num_groups);
  check_limit("num_of_group", num_of_group, std::min<int64_t>(2, group_size));
  check_limit("weights: experts of a row", weights.shape[1], num_kept_groups * group_size);
  if (!std::isfinite(scale)) fail("scale: must be finite, got " + std::to_string(scale));
  RouteExpertsParams p{};
  p.weights = static_cast<float*>(weights.data);
  p.experts = static_cast<int32_t*>(experts.data);
  p.logits = logits.data;
  p.bias = bias ? static_cast<const float*>(bias->data) : nullptr;
  p.logits_stride = logits.stride[0];
  p.num_rows = logits.shape[0];
  p.num_experts = logits.shape[1];
  p.num_picked = weights.shape[1];
  p.num_groups = num_groups;
  p.num_kept_groups = num_kept_groups;
  p.num_of_group = num_of_group;
  p.scale = static_cast<float>(scale);
  p.is_sigmoid = is_sigmoid;
  p.normalizes = normalizes;
  p.dtype = logits.dtype;
  backend.route_experts(p);
}

void order_experts(Backend& backend, const Tensor& positions, const Tensor& rows,
                   const Tensor& offsets, const Tensor& tiles, const Tensor& experts,
                   int64_t tile_rows) {
  check_shape("experts", experts, {-1, -1}, "[M, k]");
  const int64_t num_pairs = experts.shape[0] * experts.shape[1];
  check_shape("positions", positions, {experts.shape[0], experts.shape[1]}, "[M, k]");
  check_shape("rows", rows, {num_pairs}, "[M * k]");
  check_shape("offsets", offsets, {-1}, "[E + 1]");
  check_limit("offsets: experts", offsets.shape[0] - 1, kMaxExperts);
  check_shape("tiles", tiles, {-1, 2}, "[tiles, 2]");
  check_limit("tile_rows", tile_rows, 64);
  const int64_t num_experts = offsets.shape[0] - 1;
  const int64_t used = std::min(num_experts, num_pairs);
  const int64_t needed = used + (num_pairs - used) / tile_rows;
  if (tiles.shape[0] < needed) {
    fail("tiles: must have at least " + std::to_string(needed) + " rows, got " +
         std::to_string(tiles.shape[0]));
  }
  for (const auto& [name, tensor] :
       {std::pair{"experts", &experts}, std::pair{"positions", &positions},
        std::pair{"rows", &rows}, std::pair{"offsets", &offsets}, std::pair{"tiles", &tiles}})
    check_whole(name, *tensor, DType::kInt32, experts);
  OrderExpertsParams p{};
  p.order = {static_cast<int32_t*>(positions.data), static_cast<int32_t*>(rows.data),
             static_cast<int32_t*>(offsets.data), static_cast<int32_t*>(tiles.data)};
  p.experts = static_cast<const int32_t*>(experts.data);
  p.num_pairs = num_pairs;
  p.num_picked = experts.shape[1];
  p.num_experts = num_experts;
  p.num_tiles = tiles.shape[0];
  p.tile_rows = tile_rows;
  backend.order_experts(p);
}

namespace {

// All but the weights, which have N = `out_features`. Sets `linear` and `own`.
void take_expert_operands(const Tensor& out, const Tensor& x, const std::optional<Tensor>& rows,
                          const Tensor& offsets, const Tensor& tiles, int64_t tile_rows,
                          int64_t out_features, int64_t total_features, LinearParams& linear,
                          ExpertRows& own) {
  check_shape("out", out, {-1, -1, out_features}, "[P, M * k, N]");
  check_whole("out", out, out.dtype == DType::kFloat32 ? out.dtype : x.dtype, x);
  check_shape("tiles", tiles, {-1, 2}, "[tiles, 2]");
  check_whole("offsets", offsets, DType::kInt32, x);
  check_whole("tiles", tiles, DType::kInt32, x);
  if (rows) {
    check_shape("rows", *rows, {out.shape[1]}, "[M * k]");
    check_whole("rows", *rows, DType::kInt32, x);
  } else {
    check_shape("x", x, {out.shape[1], -1}, "[M * k, K]");
  }
  const int64_t num_parts = out.shape[0];
  if (num_parts < 1 || x.shape[1] % num_parts != 0) {
    fail("out: parts must divide K = " + std::to_string(x.shape[1]) + ", got " +
         std::to_string(num_parts));
  }
  if (tile_rows != 8 && tile_rows != 16 && tile_rows != 32 && tile_rows != 64)
    fail("tile_rows: must be 8, 16, 32 or 64, got " + std::to_string(tile_rows));
  if (total_features < out_features) {
    fail("total_features: must be at least N = " + std::to_string(out_features) + ", got " +
         std::to_string(total_features));
  }
  linear.out = out.data;
  linear.x = x.data;
  linear.out_stride = out.stride[1];
  linear.x_stride = x.stride[0];
  linear.num_rows = out.shape[1];
  linear.out_features = out_features;
  linear.total_features = total_features;
  linear.in_features = x.shape[1];
  linear.num_parts = num_parts;
  linear.total_parts = 1;
  linear.dtype = x.dtype;
  linear.out_is_float = out.dtype == DType::kFloat32;
  own = {rows ? static_cast<const int32_t*>(rows->data) : nullptr,
         static_cast<const int32_t*>(offsets.data),
         static_cast<const int32_t*>(tiles.data),
         out.stride[0],
         tiles.shape[0],
         tile_rows};
}

// The first expert's.
Tensor first_of(const Tensor& tensor) {
  Tensor first = tensor;
  --first.ndim;
  for (int i = 0; i < first.ndim; ++i) {
    first.shape[i] = tensor.shape[i + 1];
    first.stride[i] = tensor.stride[i + 1];
  }
  return first;
}

}  // namespace

void expert_linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
                   const std::optional<Tensor>& rows, const Tensor& offsets, const Tensor& tiles,
                   int64_t tile_rows, int64_t total_features) {
  check_shape("x", x, {-1, -1}, "[*, K]");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_shape("weight", weight, {offsets.shape[0] - 1, -1, x.shape[1]}, "[E, N, K]");
  check_whole("weight", weight, x.dtype, x);
  ExpertLinearParams p{};
  take_expert_operands(out, x, rows, offsets, tiles, tile_rows, weight.shape[1], total_features,
                       p.linear, p);
  p.linear.weight = weight.data;
  p.linear.weight_stride = weight.stride[1];
  p.expert_stride = weight.stride[0];
  backend.expert_linear(p);
}

void weight_only_experts(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& packed,
                         const Tensor& scales, const std::optional<Tensor>& rows,
                         const Tensor& offsets, const Tensor& tiles, int64_t tile_rows,
                         int64_t total_features, int64_t bits) {
  check_shape("x", x, {-1, -1}, "[*, K]");
  if (x.dtype == DType::kFloat32) fail("x: must be bfloat16 or float16, got float32");
  check_activation_dtype("x", x);
  check_unit_stride("x", x);
  check_shape("out", out, {-1, -1, -1}, "[P, M * k, N]");
  WeightOnlyExpertsParams p{};
  take_expert_operands(out, x, rows, offsets, tiles, tile_rows, out.shape[2], total_features,
                       p.linear, p);
  const int64_t num_experts = offsets.shape[0] - 1;
  check_shape("packed", packed, {num_experts, -1, -1, -1},
              "[E, ceil(N / 16), P * ceil(K / P / 64), 128 * bits]");
  check_shape("scales", scales, {num_experts, -1, -1, kOperandFeatures, 2},
              "[E, ceil(N / 16), K / group size, 16, 2]");
  check_contiguous("packed", packed);
  check_contiguous("scales", scales);
  take_weight_only(first_of(packed), first_of(scales), bits, x, p.linear);
  p.packed_stride = packed.stride[0];
  p.scales_stride = scales.stride[0] * static_cast<int64_t>(sizeof(float));
  backend.weight_only_experts(p);
}

void combine_experts(Backend& backend, const Tensor& out, const Tensor& sums, const Tensor& weights,
                     const Tensor& positions) {
  check_shape("out", out, {-1, -1}, "[M, H]");
  check_activation_dtype("out", out);
  check_unit_stride("out", out);
  check_shape("weights", weights, {out.shape[0], -1}, "[M, k]");
  check_shape("positions", positions, {out.shape[0], weights.shape[1]}, "[M, k]");
  check_shape("sums", sums, {-1, out.shape[0] * weights.shape[1], out.shape[1]}, "[P, M * k, H]");
  check_whole("sums", sums, DType::kFloat32, out);
  check_whole("weights", weights, DType::kFloat32, out);
  check_whole("positions", positions, DType::kInt32, out);
  const int64_t parts = sums.shape[0];
  if (parts != 1 && parts != 2 && parts != 4 && parts != 8)
    fail("sums: must have 1, 2, 4 or 8 parts, got " + std::to_string(parts));
  backend.combine_experts({out.data, static_cast<const float*>(sums.data),
                           static_cast<const float*>(weights.data),
                           static_cast<const int32_t*>(positions.data), out.stride[0], out.shape[0],
                           weights.shape[1], out.shape[1], parts, out.dtype});
}

}  // namespace quire::ops

#endif
