// Which tiles of a linear layer suit an H100, by what bounds them. Plain C++.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/launch.h"
#include "cuda/linear/sections.h"
#include "ops/linear.h"

namespace quire::cuda {

// Measured on an H200, in bytes and products of a cycle: what the L2 cache gives to all
// multiprocessors and to one, and what the tensor cores of one make of it.
constexpr double kBytesOfAll = 3800, kBytesOfOne = 64, kProductsOfOne = 1740;
// Cycles from where a copy begins to where it has come.
constexpr double kLatency = 1750;
// Fewer tiles leave memory idle.
constexpr int64_t kFewestTiles = 40;

template <typename Shape>
int64_t tiles_of(const LinearParams& p) {
  return (p.num_rows + Shape::kRows - 1) / Shape::kRows *
         ((p.out_features + Shape::kFeatures - 1) / Shape::kFeatures);
}

// Whether each multiprocessor has one tile at most, and enough of them have one.
template <typename Shape>
bool fits_one_wave(const LinearParams& p) {
  const int64_t tiles = tiles_of<Shape>(p);
  return tiles >= std::min<int64_t>(kFewestTiles, num_multiprocessors()) &&
         tiles <= num_multiprocessors();
}

inline bool is_one_section(const LinearParams& p) {
  return p.num_parts == 1 &&
         linear_sections(p.total_features, p.total_parts, p.in_features).count == 1;
}

// What whole tiles take of an element of K, in cycles.
template <typename Shape>
double cycles(const LinearParams& p) {
  const auto all = static_cast<double>(num_multiprocessors());
  const auto tiles = static_cast<double>(tiles_of<Shape>(p));
  const double waves = std::ceil(tiles / all), busy = std::min(tiles, all);
  const double blocks = std::min<double>(Shape::kBlocks, waves);
  const double ahead = blocks * Shape::kStepsAhead * Shape::kStageBytes / kLatency;
  const double rate = std::min({kBytesOfOne, kBytesOfAll / busy, ahead});
  const double bytes = 2.0 * (Shape::kFeatures + Shape::kRows);
  const double products = double{Shape::kFeatures} * Shape::kRows;
  return waves * std::max(bytes / rate, products / kProductsOfOne);
}

}  // namespace quire::cuda
