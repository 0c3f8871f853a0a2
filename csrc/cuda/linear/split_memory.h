// Device memory for linear layers whose sums of sections come from several blocks.
#pragma once

#include "cuda/workspace.h"

namespace quire::cuda {

// Blocks leave the sums of sections here, for the last of them to add, and count their arrivals.
struct SplitResults {
  float* sums;         // [blocks, elements of a tile]
  uint32_t* arrivals;  // [tiles], zero between launches
};

class SplitMemory {
 public:
  static constexpr int64_t kMaxBlocks = 1024;
  static constexpr int64_t kMaxTileElements = 64 * 64;

  const SplitResults& get(cudaStream_t stream) {
    if (results_.sums == nullptr) {
      auto* sums = memory_.get<float>();
      auto* arrivals = reinterpret_cast<uint32_t*>(sums + kSums);
      check(cudaMemsetAsync(arrivals, 0, kMaxBlocks * sizeof(uint32_t), stream), "split memory");
      results_ = {sums, arrivals};
    }
    return results_;
  }

 private:
  static constexpr size_t kSums = kMaxBlocks * kMaxTileElements;

  FixedMemory<kSums * sizeof(float) + kMaxBlocks * sizeof(uint32_t)> memory_;
  SplitResults results_{};
};

}  // namespace quire::cuda
