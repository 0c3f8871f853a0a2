// Holds layers over weights of 8 and 4 bits, split and not, of one part and of several, against the
// linear layer of the weights that they stand for, bit by bit, in the emulator, in each order of
// turns. Mutants of the kernel are compiled with this (test_weight_only_mutants.py): exits with 0
// if they agree, 1 if not, 2 if the kernel did what no GPU allows.
#include <cstdio>
#include <vector>

#include "cuda/linear/weight_only_warpgroups.cuh"
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
        is_right &= check_warps<ShapeOf<StreamedRowsOf8<T>>>(is_split);
        is_right &= check_warps<ShapeOf<StreamedRowsOf32<T>>>(is_split);
        is_right &= check_warps<ShapeOf<WholeRowsOf64<T>>>(is_split);
        is_right &= check_warpgroups<ShapeOf<DequantisedRowsOf64<T>>>(is_split);
      }
      is_right &= check_warpgroups<ShapeOf<DequantisedRowsOf128<T>>>(false);
      is_right &= check_warpgroups<ShapeOf<DequantisedPartsOf128<T>>>(false);
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
  bool check_warps(bool is_split) {
    return check<Shape>(is_split, weight_only_kernel<Shape, true>,
                        weight_only_kernel<Shape, false>);
  }

  template <typename Shape>
  bool check_warpgroups(bool is_split) {
    return check<Shape>(is_split, warpgroup_weight_only_kernel<Shape, true>,
                        warpgroup_weight_only_kernel<Shape, false>);
  }

  using Kernel = void (*)(WeightOnlyLinearParams, LinearGrid, SplitResults);

  template <typename Shape>
  bool check(bool is_split, Kernel of_parts, Kernel of_one_part) {
    std::vector<T> out(expected_.size(), from_float<T>(kNan));
    const auto params = problem_.params(out);
    launch_tiles<Shape>(params.num_parts > 1 ? of_parts : of_one_part, params, is_split,
                        results<Shape>(), nullptr);
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
