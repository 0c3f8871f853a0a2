// Holds layers over weights of 8 and 4 bits, split and not, of one part and of several, against the
// linear layer of the weights that they stand for, bit by bit, in the emulator, in each order of
// turns. Mutants of the kernel are compiled with this (test_weight_only_mutants.py): exits with 0
// if they agree, 1 if not, 2 if the kernel did what no GPU allows.
#include <cstdio>
#include <vector>

#include "weight_only_problem.h"

namespace {

template <typename T>
class Driver {
 public:
  Driver(Form form, const Cut& cut)
      : problem_(form, cut),
        arrivals_(64),
        sums_(64 * SplitMemory::kTileElements),
        expected_(size_t(kRows) * kFeatures) {
    launch_linear<RowsOf8<T>, true>(problem_.dequantised(expected_), false, results<RowsOf8<T>>(),
                                    nullptr);
  }

  template <template <typename> typename ShapeOf>
  bool is_right() {
    bool is_right = true;
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
      emu::Machine::order = order;
      for (const bool is_split : {false, true}) {
        is_right &= check<ShapeOf<RowsOf8<T>>>(is_split);
        is_right &= check<ShapeOf<RowsOf32<T>>>(is_split);
        is_right &= check<ShapeOf<WholeRowsOf64<T>>>(is_split);
      }
    }
    return is_right;
  }

 private:
  template <typename Shape>
  SplitResults results() {
    std::fill(sums_.begin(), sums_.end(), kNan);
    return {sums_.data(), static_cast<int64_t>(sums_.size()), arrivals_.data()};
  }

  template <typename Shape>
  bool check(bool is_split) {
    std::vector<T> out(expected_.size(), from_float<T>(kNan));
    const auto params = problem_.params(out);
    const auto kernel =
        params.num_parts > 1 ? weight_only_kernel<Shape, true> : weight_only_kernel<Shape, false>;
    launch_tiles<Shape>(kernel, params, is_split, results<Shape>(), nullptr);
    if (memcmp(out.data(), expected_.data(), out.size() * sizeof(T)) == 0) return true;
    std::fprintf(stderr, "differs: %d bits, float %d, rows of %d, split %d, order %d\n",
                 Shape::kBits, Shape::kIsFloat, Shape::kRows, is_split, int(emu::Machine::order));
    return false;
  }

  Problem<T> problem_;
  std::vector<uint32_t> arrivals_;
  std::vector<float> sums_;
  std::vector<T> expected_;
};

}  // namespace

int main() {
  try {
    bool is_right = true;
    for (const Cut& cut : kCuts) {
      is_right &= Driver<bf16>(Form::kFloat8, cut).is_right<Float8Shape>();
      is_right &= Driver<bf16>(Form::kInt8, cut).is_right<IntegersOf8>();
      is_right &= Driver<bf16>(Form::kInt4, cut).is_right<IntegersOf4>();
    }
    is_right &= Driver<f16>(Form::kFloat8, kCuts[0]).is_right<Float8Shape>();
    return is_right ? 0 : 1;
  } catch (const emu::KernelError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
