// Holds linear layers of every tile shape, split and not, of one part and of four, against float64
// and against each other, in the emulator, in each order of turns. Mutants of the kernel are
// compiled with this (test_linear_mutants.py): exits with 0 if they agree, 1 if not, 2 if the
// kernel did what no GPU allows.
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "cuda/linear/warpgroup_tile.cuh"

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int kRows = 21;
// Each part has several sections, the last of them short, which ends within a step.
constexpr int kPartLengths[] = {584, 296};
constexpr int kNumParts[] = {1, 4};
constexpr int kOneSection = 200;
constexpr int kOutFeatures = 136;
constexpr int kOutStride = kOutFeatures + 8;

// Operands whose rows end in NaN, amid rows of NaN.
template <typename T>
struct Problem {
  std::vector<T> x, weight, bias;
  std::vector<double> expected, magnitude;
  int num_parts, in_features, stride;

  Problem(int part_length, int parts)
      : num_parts(parts), in_features(part_length * parts), stride(in_features + 8) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const T nan = from_float<T>(std::numeric_limits<float>::quiet_NaN());
    const auto fill = [&](std::vector<T>& rows, int count) {
      rows.assign(size_t(count + 1) * stride, nan);
      for (int row = 0; row < count; ++row)
        for (int k = 0; k < in_features; ++k)
          rows[row * stride + k] = from_float<T>(normal(random));
    };
    fill(x, kRows);
    fill(weight, kOutFeatures);
    for (int n = 0; n < kOutFeatures; ++n) bias.push_back(from_float<T>(normal(random)));
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kOutFeatures; ++n) {
        double sum = to_float(bias[n]);
        double size = std::abs(sum);
        for (int k = 0; k < in_features; ++k) {
          const double product =
              double(to_float(x[m * stride + k])) * to_float(weight[n * stride + k]);
          sum += product;
          size += std::abs(product);
        }
        expected.push_back(sum);
        magnitude.push_back(size);
      }
    }
  }

  LinearParams params(std::vector<T>& out) {
    LinearParams p{};
    p.out = out.data();
    p.x = x.data();
    p.weight = weight.data();
    p.bias = bias.data();
    p.out_stride = kOutStride;
    p.x_stride = stride;
    p.weight_stride = stride;
    p.num_rows = kRows;
    p.out_features = kOutFeatures;
    p.total_features = kOutFeatures;
    p.num_parts = num_parts;
    p.total_parts = num_parts;
    p.in_features = in_features;
    return p;
  }

  // Exact but for a rounding of the result and float32 sums; nothing written beside them.
  bool is_right(const std::vector<T>& out) const {
    const double unit = sizeof(T) == 4 ? 0 : 0x1p-8;
    for (int m = 0; m <= kRows; ++m) {
      for (int n = 0; n < kOutStride; ++n) {
        const double value = to_float(out[m * kOutStride + n]);
        if (m == kRows || n >= kOutFeatures) {
          if (!std::isnan(value)) return false;
          continue;
        }
        const size_t at = size_t(m) * kOutFeatures + n;
        const double bound = unit * std::abs(expected[at]) + 0x1p-20 * magnitude[at];
        if (!(std::abs(value - expected[at]) <= bound)) return false;
      }
    }
    return true;
  }
};

template <typename T>
class Driver {
 public:
  Driver(int part_length, int num_parts)
      : problem_(part_length, num_parts), arrivals_(64), sums_(256 * SplitMemory::kTileElements) {}

  // Layers of one section: the last step is short, as above.
  int run_one_section() {
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
      emu::Machine::order = order;
      check<RowsOf64<T>, true>("64", false);
      check_warpgroups<WideRowsOf128<T>>("128, warpgroups", false);
      check<WidestRowsOf256<T>>("256, warpgroups", false, launch_whole<WidestRowsOf256<T>>);
    }
    return failed_ ? 1 : 0;
  }

  int run() {
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
      emu::Machine::order = order;
      for (const bool is_split : {false, true}) {
        check<RowsOf8<T>, true>("8", is_split);
        check<RowsOf64<T>, true>("64", is_split);
        if constexpr (sizeof(T) == 2) {  // the others differ in numbers alone
          check<RowsOf16<T>, true>("16", is_split);
          check<RowsOf32<T>, true>("32", is_split);
          check<RowsOf64<T>, false>("64, unaligned", is_split);
        }
      }
      if constexpr (sizeof(T) == 2) {
        check<RowsOf128<T>, true>("128", false);
        run_warpgroups();
      }
    }
    return failed_ ? 1 : 0;
  }

 private:
  void run_warpgroups() {
    for (const bool is_split : {false, true}) {
      check_warpgroups<SmallRowsOf32<T>>("32, warpgroups", is_split);
      check_warpgroups<WideRowsOf64<T>>("64, wide", is_split);
    }
    check_warpgroups<SmallRowsOf64<T>>("64, warpgroups", false);
    check_warpgroups<DeepRowsOf64<T>>("64, deep", false);
    check_warpgroups<PartsOfRowsOf64<T>>("64, all levels near", false);
    check_warpgroups<WideRowsOf128<T>>("128, warpgroups", false);
    check_warpgroups<PartsOfRowsOf128<T>>("128, a level near", false);
  }

  template <typename Shape, bool kIsAligned>
  void check(const char* name, bool is_split) {
    check<Shape>(name, is_split, launch_linear<Shape, kIsAligned>);
  }

  template <typename Shape>
  void check_warpgroups(const char* name, bool is_split) {
    check<Shape>(name, is_split, launch_warpgroups<Shape>);
  }

  template <typename Shape>
  void check(const char* name, bool is_split,
             void (*launch)(const LinearParams&, bool, const SplitResults&, cudaStream_t)) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<T> out(size_t(kRows + 1) * kOutStride, from_float<T>(nan));
    std::fill(sums_.begin(), sums_.end(), nan);
    // Whole tiles of several parts: by two blocks, one after the other.
    const int64_t num_elements =
        is_split ? static_cast<int64_t>(sums_.size()) : 2 * kTreeElements<Shape>;
    launch(problem_.params(out), is_split, {sums_.data(), num_elements, arrivals_.data()}, nullptr);
    if (first_.empty()) first_ = out;
    const bool has_same_bits = memcmp(out.data(), first_.data(), out.size() * sizeof(T)) == 0;
    if (problem_.is_right(out) && has_same_bits) return;
    failed_ = true;
    std::fprintf(stderr, "differs: %d bytes, %d parts, rows of %s, split %d, order %d\n",
                 int(sizeof(T)), problem_.num_parts, name, is_split, int(emu::Machine::order));
  }

  Problem<T> problem_;
  std::vector<uint32_t> arrivals_;
  std::vector<float> sums_;
  std::vector<T> first_;
  bool failed_ = false;
};

}  // namespace

int main() {
  try {
    int failed = 0;
    for (int i = 0; i < 2; ++i) {
      failed |= Driver<bf16>(kPartLengths[i], kNumParts[i]).run();
      failed |= Driver<float>(kPartLengths[i], kNumParts[i]).run();
    }
    failed |= Driver<bf16>(kOneSection, 1).run_one_section();
    return failed;
  } catch (const emu::KernelError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
