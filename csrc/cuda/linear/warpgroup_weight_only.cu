// Chooses the tiles of a layer with weights of 8 or 4 bits that warpgroups multiply. A source of
// its own, as warpgroup_linear.cu is.
#include <algorithm>
#include <cmath>

#include "cuda/linear/warpgroup_choice.cuh"
#include "cuda/linear/warpgroup_linear.h"
#include "cuda/linear/weight_only_formats.cuh"
#include "cuda/linear/weight_only_warpgroups.cuh"

namespace quire::cuda {
namespace {

constexpr int64_t kMostRowsOfWarps = 32;
// Instructions of a warp in a step, most of which dequantise; products of a cycle that a
// multiprocessor makes beside them.
constexpr double kStepInstructions = 230, kProductsBeside = 1800;

// Cycles that multiprocessors take for a step of so many tiles each.
template <typename Shape>
double cycles_of_steps(double tiles) {
  constexpr double kWarpsOfScheduler = Shape::kThreads / kWarpSize / 4;
  return tiles * std::max(Shape::kFeatures * Shape::kRows * Shape::kStep / kProductsBeside,
                          kWarpsOfScheduler * kStepInstructions);
}

// Cycles of a layer in whole tiles.
template <typename Shape>
double cycles_of_dequantised(const LinearParams& p) {
  const auto tiles = static_cast<double>(num_tiles<Shape>(p));
  const double waves = std::ceil(tiles / num_multiprocessors());
  const double step = std::max({
      tiles * Shape::kStageBytes / kCacheBytes,
      cycles_of_steps<Shape>(waves),
      std::ceil(waves / Shape::kBlocks) * kCopyLatency / Shape::kStepsAhead,
  });
  return step * static_cast<double>(p.in_features) / Shape::kStep + far_bytes<Shape>(p) / kFarBytes;
}

// The same of a layer whose sections are spread over blocks, of which the last adds up what the
// others left.
template <typename Shape>
double cycles_of_split(const LinearParams& p) {
  constexpr double kMergeCycles = 24e3;
  const auto tiles = static_cast<double>(num_tiles<Shape>(p));
  const double step = std::max(tiles * Shape::kStageBytes / kCacheBytes,
                               cycles_of_steps<Shape>(tiles / num_multiprocessors()));
  return kMergeCycles + step * static_cast<double>(p.in_features) / Shape::kStep;
}

template <template <typename> typename ShapeOf, typename T>
void run(const WeightOnlyLinearParams& p, const SplitResults& results, cudaStream_t stream) {
  using Of64 = ShapeOf<DequantisedRowsOf64<T>>;
  using Of128 = ShapeOf<DequantisedRowsOf128<T>>;
  using PartsOf128 = ShapeOf<DequantisedPartsOf128<T>>;
  const double of_64 = cycles_of_dequantised<Of64>(p);
  const double of_128 =
      p.num_parts > 1 ? cycles_of_dequantised<PartsOf128>(p) : cycles_of_dequantised<Of128>(p);
  const double split = is_split_well<Of64>(p) ? cycles_of_split<Of64>(p) : of_64;
  if (of_128 < std::min(of_64, split)) {
    launch_weight_only_warpgroups<Of128, PartsOf128>(p, false, results, stream);
  } else {
    launch_weight_only_warpgroups<Of64>(p, split < of_64, results, stream);
  }
}

}  // namespace

bool run_warpgroups(const WeightOnlyLinearParams& p, const SplitResults& results,
                    cudaStream_t stream) {
  if (!has_warpgroups() || p.num_rows <= kMostRowsOfWarps) return false;
  dispatch_weight_only(p, [&](auto format) {
    using Format = decltype(format);
    run<Format::template ShapeOf, typename Format::Element>(p, results, stream);
  });
  return true;
}

}  // namespace quire::cuda
