// Holds int8 layers of every tile shape against their definition, to the bit, in the emulator, in
// each order of turns. Mutants of the kernel are compiled with this (test_int8_mutants.py): exits
// with 0 if they agree, 1 if not, 2 if the kernel did what no GPU allows.
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "cuda/linear/int8_tile.cuh"

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int kRows = 37;
constexpr int kOutFeatures = 120;  // four panels, the last of them not whole
constexpr int kPanelCount = 4;
constexpr int kOutStride = kOutFeatures + 8;
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Rows that end in NaN, weights as they are packed, and the results by the definition.
struct Problem {
  int num_parts, length, stride, lines;
  std::vector<float> x, bias, expected;
  std::vector<uint4> packed;  // aligned as a GPU wants it

  Problem(int parts, int part_length)
      : num_parts(parts),
        length(part_length),
        stride(parts * part_length + 4),
        lines((part_length + 3) / 4 + 1) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    x.assign(size_t(kRows) * stride, kNan);
    for (int row = 0; row < kRows; ++row)
      for (int k = 0; k < parts * length; ++k)
        x[row * stride + k] = row == 3 ? 0.f : normal(random) * (row == 4 ? 0x1p-120f : 1.f);
    // One element becomes 1 if it is not taken for zero, as a denormal is.
    x[5 * stride] = 0x1.8p-127f;
    for (int k = 1; k < parts * length; ++k) x[5 * stride + k] = k % length == 1 ? 0x1.1p-119f : 0;
    for (int n = 0; n < kOutFeatures; ++n) bias.push_back(normal(random));

    std::vector<int> weight(size_t(kOutFeatures) * parts * length);
    for (int& each : weight) each = int(random() % 255) - 127;
    std::vector<float> scales(size_t(kOutFeatures) * parts);
    for (float& each : scales) each = 0.01f + random() % 100 * 0.001f;
    for (int part = 0; part < parts; ++part) scales[part] = 0x1p110f;  // shows the smallest rows
    packed.resize(size_t(kPanelCount) * parts * lines * 8);
    memset(packed.data(), 0, packed.size() * sizeof(uint4));
    for (int n = 0; n < kOutFeatures; ++n) {
      for (int part = 0; part < parts; ++part) {
        char* begin = reinterpret_cast<char*>(packed.data()) +
                      (n / 32 * parts + part) * size_t(lines) * kInt8Line;
        for (int k = 0; k < length; ++k)
          begin[k / 4 * 128 + n % 32 * 4 + k % 4] =
              char(weight[(n * parts + part) * length + k] + 128);
        memcpy(begin + (lines - 1) * kInt8Line + n % 32 * 4, &scales[n * parts + part], 4);
      }
    }
    for (int row = 0; row < kRows; ++row)
      for (int n = 0; n < kOutFeatures; ++n) {
        std::vector<float> sums;
        for (int part = 0; part < parts; ++part)
          sums.push_back(sum_of_part(&x[row * stride + part * length],
                                     &weight[(n * parts + part) * length],
                                     scales[n * parts + part]));
        for (size_t count = sums.size(); count > 1; count /= 2)
          for (size_t i = 0; i < count / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
        expected.push_back(sums[0] + bias[n]);
      }
  }

  float sum_of_part(const float* row, const int* weight, float scale_of_weight) const {
    float largest = 0;
    for (int k = 0; k < length; ++k) largest = std::max(largest, std::abs(row[k]));
    const float scale = largest / 127;
    if (scale < 0x1p-126f) return 0;
    int sum = 0;
    for (int k = 0; k < length; ++k) {
      const float element = std::abs(row[k]) < 0x1p-126f ? 0 : row[k];
      sum += int(std::nearbyint(element * (1 / scale))) * weight[k];
    }
    const float factor = scale * scale_of_weight;
    return float(sum) * (factor < 0x1p-126f ? 0 : factor);
  }

  PackedLinearParams params(std::vector<float>& out) const {
    PackedLinearParams p{};
    p.out = out.data();
    p.x = x.data();
    p.weight = packed.data();
    p.bias = bias.data();
    p.out_stride = kOutStride;
    p.x_stride = stride;
    p.num_rows = kRows;
    p.out_features = kOutFeatures;
    p.in_features = num_parts * length;
    p.num_parts = num_parts;
    p.out_is_float = true;
    return p;
  }

  bool is_right(const std::vector<float>& out) const {
    for (int row = 0; row <= kRows; ++row)
      for (int n = 0; n < kOutStride; ++n) {
        const float value = out[row * kOutStride + n];
        if (row == kRows || n >= kOutFeatures) {
          if (!std::isnan(value)) return false;
        } else if (value != expected[row * kOutFeatures + n]) {
          return false;
        }
      }
    return true;
  }
};

template <typename Shape>
bool check(const Problem& problem) {
  const int64_t blocks = (problem.length + kInt8Block - 1) / kInt8Block;
  const int64_t parts = int64_t{kRows} * problem.num_parts;
  std::vector<uint4> elements(parts * blocks * kInt8Block / 16, uint4{~0u, ~0u, ~0u, ~0u});
  std::vector<float> scales(parts, kNan);
  std::vector<float> out(size_t(kRows + 1) * kOutStride, kNan);
  const PackedLinearParams p = problem.params(out);
  const Int8Rows rows{reinterpret_cast<int8_t*>(elements.data()), scales.data(), blocks};
  launch_int8_linear<Shape, float, float>(p, rows, nullptr);
  if (problem.is_right(out)) return true;
  std::fprintf(stderr, "differs: %d parts, tile of %d x %d, order %d\n", problem.num_parts,
               Shape::kFeatures, Shape::kRows, int(emu::Machine::order));
  return false;
}

}  // namespace

int main() {
  try {
    bool is_right = true;
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
      emu::Machine::order = order;
      for (const Problem& problem : {Problem(1, 589), Problem(2, 130), Problem(8, 70)}) {
        is_right &= check<Int8Shape<1, 1>>(problem);
        is_right &= check<Int8Shape<1, 4>>(problem);
        is_right &= check<Int8Shape<2, 8>>(problem);
      }
    }
    return is_right ? 0 : 1;
  } catch (const emu::KernelError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
