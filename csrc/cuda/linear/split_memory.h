// Device memory for linear layers whose sums of sections come from several blocks.
#pragma once

#include "cuda/workspace.h"

namespace quire::cuda {

// Blocks leave the sums of sections here, for the last of them to add, and count their arrivals.
struct SplitResults {
  float* sums;           // [blocks, elements of a tile], num_elements at most, or trees of blocks
  int64_t num_elements;  // of sums
  uint32_t* arrivals;    // [tiles], zero between launches
};

class SplitMemory {
 public:
  static constexpr int64_t kMaxBlocks = 2048;
  static constexpr int64_t kTileElements = 64 * 64;  // of larger tiles there is room for fewer
  static constexpr int64_t kElements = kMaxBlocks * kTileElements;

  const SplitResults& get(cudaStream_t stream) {
    if (results_.sums == nullptr) {
      auto* sums = memory_.get<float>();
      auto* arrivals = reinterpret_cast<uint32_t*>(sums + kElements);
      check(cudaMemsetAsync(arrivals, 0, kMaxBlocks * sizeof(uint32_t), stream), "split memory");
      results_ = {sums, kElements, arrivals};
    }
    return results_;
  }

 private:
  FixedMemory<kElements * sizeof(float) + kMaxBlocks * sizeof(uint32_t)> memory_;
  SplitResults results_{};
};

}  // namespace quire::cuda
