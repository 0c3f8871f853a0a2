// How a linear layer's sums over K are cut. Plain C++: nothing here knows of a device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire::cuda {

// A part of K is cut at multiples of `length`; sums of sections begin at zero and are added in
// order.
struct LinearSections {
  int64_t length;
  int64_t count;
};

// A function of the layer alone, since where sums are cut decides their bits: the number of rows,
// the device and the number of devices that share the layer do not matter. Cut so that a few
// rows, which read weights and do little else, give some 512 blocks, four to each multiprocessor of
// a large GPU; of a layer whose parts devices share twice as many, for each has some of them.
inline LinearSections linear_sections(int64_t total_features, int64_t total_parts,
                                      int64_t part_length) {
  constexpr int64_t kBlocks = 512;
  constexpr int64_t kBlockFeatures = 64;
  constexpr int64_t kMaxSections = 64;
  constexpr int64_t kMinLength = 256;
  constexpr int64_t kMultiple = 64;  // whole steps of every kernel
  const int64_t blocks =
      std::max<int64_t>(1, (total_features + kBlockFeatures - 1) / kBlockFeatures) * total_parts;
  const int64_t at_once = total_parts > 1 ? 2 * kBlocks : kBlocks;
  const int64_t wanted = std::clamp<int64_t>((at_once + blocks / 2) / blocks, 1, kMaxSections);
  const int64_t share = (part_length + wanted - 1) / wanted;
  const int64_t length = std::max(kMinLength, (share + kMultiple - 1) / kMultiple * kMultiple);
  return {length, std::max<int64_t>(1, (part_length + length - 1) / length)};
}

}  // namespace quire::cuda
