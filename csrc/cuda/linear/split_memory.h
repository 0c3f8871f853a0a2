// Device memory for linear layers whose sums of sections come from several blocks.
#pragma once

#include "cuda/workspace.h"

namespace quire::cuda {

// Blocks leave the sums of sections here, for the last of them to add, and count their arrivals.
struct SplitResults {
  float* sums;         // [blocks, elements of a tile]
  uint32_t* arrivals;  // [tiles], zero between launches
};

// The size is fixed, so that it never moves: a captured graph may keep its address.
class SplitMemory {
 public:
  static constexpr int64_t kMaxBlocks = 1024;
  static constexpr int64_t kMaxTileElements = 64 * 64;

  const SplitResults& get(cudaStream_t stream) {
    if (results_.sums == nullptr) {
      constexpr size_t kSums = kMaxBlocks * kMaxTileElements;
      memory_.begin(
          Workspace::piece_bytes<float>(kSums) + Workspace::piece_bytes<uint32_t>(kMaxBlocks),
          stream);
      float* sums = memory_.take<float>(kSums);
      auto* arrivals = memory_.take<uint32_t>(kMaxBlocks);
      check(cudaMemsetAsync(arrivals, 0, kMaxBlocks * sizeof(uint32_t), stream), "split memory");
      results_ = {sums, arrivals};
    }
    return results_;
  }

 private:
  Workspace memory_;
  SplitResults results_{};
};

}  // namespace quire::cuda
