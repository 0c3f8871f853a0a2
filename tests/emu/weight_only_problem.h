// Layers over weights of 8 and 4 bits, and the weights that those stand for.
#pragma once

#include <limits>
#include <random>
#include <vector>

#include "cuda/linear/weight_only_tile.cuh"

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int kRows = 21;
constexpr int kFeatures = 72;  // the last tile of 16 is half empty
constexpr int kTiles = 5;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Cut {
  int part_length, num_parts, group_size;
};
// A part ends within a step.
constexpr Cut kCuts[] = {{160, 2, 32}, {224, 1, 32}, {320, 4, 64}, {256, 1, 128}};

enum class Form { kInt8, kInt4, kFloat8 };

template <typename Base>
using IntegersOf8 = WeightOnlyShape<Base, 8>;
template <typename Base>
using IntegersOf4 = WeightOnlyShape<Base, 4>;

// Rows of x end in NaN, and the last scale is followed by NaN.
template <typename T>
class Problem {
 public:
  Problem(Form form, const Cut& cut, unsigned seed = 1)
      : form_(form),
        cut_(cut),
        in_features_(cut.part_length * cut.num_parts),
        random_(seed),
        x_(size_t(kRows + 1) * (in_features_ + 8), from_float<T>(kNan)),
        weight_(size_t(kFeatures) * in_features_),
        scales_(size_t(kTiles) * num_groups() * 16 * 2 + 64, kNan) {
    const int part_steps = (cut.part_length + 63) / 64;
    packed_.resize(size_t(kTiles) * cut.num_parts * part_steps * step_bytes());
    std::normal_distribution<float> normal;
    for (int row = 0; row < kRows; ++row)
      for (int k = 0; k < in_features_; ++k)
        x_[size_t(row) * (in_features_ + 8) + k] = from_float<T>(normal(random_));
    for (int n = 0; n < kFeatures; ++n) {
      for (int group = 0; group < num_groups(); ++group) put_group(n, group, normal(random_));
      bias_.push_back(from_float<T>(normal(random_)));
    }
  }

  WeightOnlyLinearParams params(std::vector<T>& out) const {
    WeightOnlyLinearParams p{};
    p.out = out.data();
    p.x = x_.data();
    p.weight = packed_.data();
    p.bias = bias_.data();
    p.out_stride = kFeatures;
    p.x_stride = in_features_ + 8;
    p.num_rows = kRows;
    p.out_features = kFeatures;
    p.total_features = kFeatures;
    p.in_features = in_features_;
    p.num_parts = cut_.num_parts;
    p.total_parts = cut_.num_parts;
    p.scales = scales_.data();
    p.group_size = cut_.group_size;
    p.bits = num_bits();
    p.is_float = form_ == Form::kFloat8;
    return p;
  }

  LinearParams dequantised(std::vector<T>& out) const {
    LinearParams p = params(out);
    p.weight = weight_.data();
    p.weight_stride = in_features_;
    return p;
  }

  const std::vector<uint8_t>& packed() const { return packed_; }
  const std::vector<float>& scales() const { return scales_; }

 private:
  int num_groups() const { return in_features_ / cut_.group_size; }
  int num_bits() const { return form_ == Form::kInt4 ? 4 : 8; }
  int step_bytes() const { return 16 * 64 * num_bits() / 8; }

  // Makes up the weights of a feature and a group.
  void put_group(int n, int group, float scale) {
    const int low = form_ == Form::kInt4 ? 15 : 255;
    const int zero = static_cast<int>(random_() & low);
    float* place = &scales_[((size_t(n / 16) * num_groups() + group) * 16 + n % 16) * 2];
    place[0] = scale;
    place[1] = form_ == Form::kFloat8 ? kNan : 0x1p23f + static_cast<float>(zero);
    for (int k = group * cut_.group_size; k < (group + 1) * cut_.group_size; ++k) {
      auto code = static_cast<uint8_t>(random_() & low);
      if (form_ == Form::kFloat8 && (code & 0x7f) == 0x7f) code = 0;
      put_code(n, k, code);
      const float value =
          form_ == Form::kFloat8 ? to_float(e4m3{code}) : static_cast<float>(code - zero);
      weight_[size_t(n) * in_features_ + k] = from_float<T>(value * scale);
    }
  }

  // As ops.weight_only_linear describes it.
  void put_code(int n, int k, uint8_t code) {
    const int part_steps = (cut_.part_length + 63) / 64;
    const int in_part = k % cut_.part_length;
    const int step = k / cut_.part_length * part_steps + in_part / 64;
    const int in_half = in_part % 32;
    const int lane = n % 8 * 4 + in_half % 8 / 2;
    const int element = in_half % 16 / 8 * 2 + in_half % 2;
    const int place = (in_part % 64 / 32 * 32 + lane) * 16 + in_half / 16 * 8 + n % 16 / 8 * 4;
    uint8_t* bytes = &packed_[(size_t(n / 16) * cut_.num_parts * part_steps + step) * step_bytes()];
    if (num_bits() == 8) {
      bytes[place + element] = code;
    } else {
      bytes[(place + element) / 2] |= code << element % 2 * 4;
    }
  }

  Form form_;
  Cut cut_;
  int in_features_;
  std::mt19937 random_;
  std::vector<T> x_, weight_, bias_;
  std::vector<float> scales_;
  std::vector<uint8_t> packed_;
};

}  // namespace
