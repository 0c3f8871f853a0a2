// How a linear layer's sums over K are cut. Plain C++: nothing here knows of a device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire::cuda {

// K is cut at multiples of `length`; sums of sections begin at zero and are added in order.
struct LinearSections {
  int64_t length;
  int64_t count;
};

// A function of the layer alone, since where sums are cut decides their bits: the number of rows,
// the device and the number of devices that share the layer do not matter. Cut so that a few
// rows, which read weights and do little else, give some 512 blocks, four to each multiprocessor of
// a large GPU.
inline LinearSections linear_sections(int64_t total_features, int64_t in_features) {
  constexpr int64_t kBlocks = 512;
  constexpr int64_t kBlockFeatures = 64;
  constexpr int64_t kMaxSections = 64;
  constexpr int64_t kMinLength = 256;
  constexpr int64_t kMultiple = 64;  // whole steps of every kernel
  const int64_t blocks =
      std::max<int64_t>(1, (total_features + kBlockFeatures - 1) / kBlockFeatures);
  const int64_t wanted = std::clamp<int64_t>((kBlocks + blocks / 2) / blocks, 1, kMaxSections);
  const int64_t share = (in_features + wanted - 1) / wanted;
  const int64_t length = std::max(kMinLength, (share + kMultiple - 1) / kMultiple * kMultiple);
  return {length, std::max<int64_t>(1, (in_features + length - 1) / length)};
}

}  // namespace quire::cuda
