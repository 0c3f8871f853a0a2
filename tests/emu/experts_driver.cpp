// Holds experts over weights of 8 and 4 bits, whose rows are gathered and not, against the linear
// layer of each expert and part of K, bit by bit, in the emulator, in each order of turns. Mutants
// of the kernel are compiled with this (test_experts_mutants.py): exits with 0 if they agree, 1 if
// not, 2 if the kernel did what no GPU allows.
#include <cstdio>
#include <vector>

#include "cuda/experts/weight_only_experts.cuh"
#include "weight_only_problem.h"

namespace {

constexpr int kExperts = 3;
// The second expert has no rows. A tile of rows may end within an expert's, and within a block's.
constexpr int32_t kOffsets[kExperts + 1] = {0, 18, 18, kRows};

// Rows lie at `rows`, or where they are if that is null.
template <typename T>
class Driver {
 public:
  Driver(Form form, const Cut& cut) : cut_(cut) {
    for (int i = 0; i < kExperts; ++i) {
      experts_.emplace_back(form, cut, i + 1);
      const Problem<T>& added = experts_.back();
      packed_.insert(packed_.end(), added.packed().begin(), added.packed().end());
      // What follows the scales of a problem is no part of them.
      const size_t size = added.scales().size() - 64;
      scales_.insert(scales_.end(), added.scales().begin(), added.scales().begin() + size);
    }
    for (int i = 0; i < kRows; ++i) rows_.push_back(i * 5 % kRows);
  }

  template <template <typename> typename ShapeOf>
  bool is_right() {
    bool is_right = true;
    const int32_t* const list = rows_.data();
    for (const int32_t* rows : {static_cast<const int32_t*>(nullptr), list}) {
      const std::vector<float> expected = of_each_expert(rows);
      for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
        emu::Machine::order = order;
        is_right &= check<ShapeOf<RowsOf8<T>>>(rows, 8, expected);
        is_right &= check<ShapeOf<RowsOf32<T>>>(rows, 16, expected);
        is_right &= check<ShapeOf<RowsOf32<T>>>(rows, 32, expected);
        is_right &= check<ShapeOf<WholeRowsOf64<T>>>(rows, 64, expected);
      }
    }
    return is_right;
  }

 private:
  static constexpr size_t kPart = size_t{kRows} * kFeatures;

  // The sums of each part, from the weights that bits stand for.
  std::vector<float> of_each_expert(const int32_t* rows) {
    std::vector<float> sums(cut_.num_parts * kPart, kNan);
    std::vector<T> unused;
    const LinearParams first = experts_[0].dequantised(unused);
    const std::vector<T> x = in_order(first, rows);
    for (int expert = 0; expert < kExperts; ++expert) {
      for (int part = 0; part < cut_.num_parts; ++part) {
        LinearParams p = experts_[expert].dequantised(unused);
        const int64_t begin = kOffsets[expert];
        p.out = sums.data() + part * kPart + begin * kFeatures;
        p.out_is_float = true;
        p.x = x.data() + begin * p.x_stride + part * cut_.part_length;
        p.weight = static_cast<const T*>(p.weight) + part * cut_.part_length;
        p.bias = nullptr;
        p.num_rows = kOffsets[expert + 1] - begin;
        p.in_features = cut_.part_length;
        p.num_parts = p.total_parts = 1;
        if (p.num_rows > 0) launch_linear<RowsOf8<T>, true>(p, false, SplitResults{}, nullptr);
      }
    }
    return sums;
  }

  // Rows of x by their positions.
  static std::vector<T> in_order(const LinearParams& p, const int32_t* rows) {
    std::vector<T> x;
    for (int position = 0; position < kRows; ++position) {
      const int row = rows == nullptr ? position : rows[position];
      const T* from = static_cast<const T*>(p.x) + row * p.x_stride;
      x.insert(x.end(), from, from + p.x_stride);
    }
    return x;
  }

  template <typename Shape>
  bool check(const int32_t* rows, int tile_rows, const std::vector<float>& expected) {
    std::vector<T> unused;
    std::vector<float> out(expected.size(), kNan);
    std::vector<int32_t> tiles;
    for (int expert = 0; expert < kExperts; ++expert)
      for (int row = kOffsets[expert]; row < kOffsets[expert + 1]; row += tile_rows)
        tiles.insert(tiles.end(), {expert, row});
    tiles.insert(tiles.end(), {-1, 0});
    WeightOnlyExpertsParams p{};
    p.linear = experts_[0].params(unused);
    p.linear.out = out.data();
    p.linear.out_is_float = true;
    p.linear.weight = packed_.data();
    p.linear.scales = scales_.data();
    p.linear.bias = nullptr;
    p.linear.total_parts = 1;
    p.rows = rows;
    p.offsets = kOffsets;
    p.tiles = tiles.data();
    p.part_stride = kPart;
    p.num_tiles = static_cast<int64_t>(tiles.size()) / 2;
    p.tile_rows = tile_rows;
    p.packed_stride = static_cast<int64_t>(packed_.size()) / kExperts;
    p.scales_stride = static_cast<int64_t>(scales_.size() * sizeof(float)) / kExperts;
    launch_weight_only_experts<Shape>(p, nullptr);
    if (memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0) return true;
    std::fprintf(stderr, "differs: %d bits, float %d, tiles of %d rows, gathered %d, order %d\n",
                 Shape::kBits, Shape::kIsFloat, tile_rows, rows != nullptr,
                 int(emu::Machine::order));
    return false;
  }

  Cut cut_;
  std::vector<Problem<T>> experts_;
  std::vector<uint8_t> packed_;
  std::vector<float> scales_;
  std::vector<int32_t> rows_;
};

}  // namespace

int main() {
  try {
    bool is_right = Driver<bf16>(Form::kInt8, kCuts[0]).is_right<IntegersOf8>();
    is_right &= Driver<bf16>(Form::kInt4, kCuts[1]).is_right<IntegersOf4>();
    is_right &= Driver<f16>(Form::kFloat8, kCuts[2]).is_right<Float8Shape>();
    return is_right ? 0 : 1;
  } catch (const emu::KernelError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
