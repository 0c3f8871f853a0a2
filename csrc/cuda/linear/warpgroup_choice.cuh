// Which tiles of a linear layer suit an H100 or H200, by what bounds them.
//
// Measured on an H100, over the layers of Llama-3-8B, of one part and of eight, and 48 to 2,048
// rows (docs/gpu-measured.md): the choice is what was fastest there, or takes a twentieth longer.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/linear/linear.cuh"

namespace quire::cuda {

// Bytes of a cycle that come from the L2 cache: to all multiprocessors, and to one.
constexpr double kCacheBytes = 4600, kOwnCacheBytes = 64;
// Products of a cycle that a multiprocessor makes, of what copies bring.
constexpr double kProductsOfCycle = 1360;
// Cycles from where a copy begins to where it has come, and those of a step whose products are
// waited for.
constexpr double kCopyLatency = 1900, kStepLatency = 480;
// Bytes of a cycle that sums of parts take on their way to memory and back.
constexpr double kFarBytes = 1800;

// Bytes of the sums of parts that wait in memory for their neighbours, written and read.
template <typename Shape>
double far_bytes(const LinearParams& p) {
  int64_t sums = 0;
  for (int level = Shape::kSharedLevels; level < kTreeLevels; ++level)
    sums += p.num_parts >> (level + 1);
  return 2.0 * sizeof(float) * static_cast<double>(sums * num_tiles<Shape>(p)) * Shape::kFeatures *
         Shape::kRows;
}

// Cycles of a layer in whole tiles.
template <typename Shape>
double cycles_of_whole(const LinearParams& p) {
  const auto tiles = static_cast<double>(num_tiles<Shape>(p));
  const double waves = std::ceil(tiles / num_multiprocessors());
  const double rounds = std::ceil(waves / Shape::kBlocks);
  const double own_latency = Shape::kInFlight > 0 ? 0. : kStepLatency;
  const double step = std::max({
      tiles * Shape::kStageBytes / kCacheBytes,
      waves * Shape::kStageBytes / kOwnCacheBytes,
      waves * Shape::kFeatures * Shape::kRows * Shape::kStep / kProductsOfCycle,
      rounds * std::max(kCopyLatency / Shape::kStepsAhead, own_latency),
  });
  return step * static_cast<double>(p.in_features) / Shape::kStep + far_bytes<Shape>(p) / kFarBytes;
}

}  // namespace quire::cuda
