// Whether the four warps of each warpgroup of a block perform the same instructions for products,
// in the same order and between the same barriers, which PTX asks of them (.aligned).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program.h"

namespace ptx {

constexpr int kWarpsOfGroup = 4;

class WarpgroupOrder {
 public:
  // What one warp performs must be the same of all four.
  struct Step {
    const Instruction* instruction;
    uint32_t epoch;  // barriers that the block has passed
    uint64_t a;      // descriptors of operands
    uint64_t b;

    bool operator==(const Step& other) const {
      return instruction == other.instruction && epoch == other.epoch && a == other.a &&
             b == other.b;
    }
  };

  void begin_block(size_t num_warps) {
    done_.assign(num_warps, 0);
    steps_.assign((num_warps + kWarpsOfGroup - 1) / kWarpsOfGroup, {});
  }

  // A warp performs its next step. Returns false if another of its group performed another.
  bool add(int warp, const Step& step) {
    std::vector<Step>& steps = steps_[static_cast<size_t>(warp / kWarpsOfGroup)];
    const size_t number = done_[static_cast<size_t>(warp)]++;
    if (number == steps.size()) steps.push_back(step);
    return steps[number] == step;
  }

  // Whether a group has its four warps.
  bool is_whole(int warp) const {
    return static_cast<size_t>(warp / kWarpsOfGroup + 1) * kWarpsOfGroup <= done_.size();
  }

  // The first warp that has performed fewer steps than another of its group; -1 if there is none.
  int left_behind() const {
    for (size_t warp = 0; warp < done_.size(); ++warp) {
      if (done_[warp] < steps_[warp / kWarpsOfGroup].size()) return static_cast<int>(warp);
    }
    return -1;
  }

 private:
  std::vector<size_t> done_;              // by warp
  std::vector<std::vector<Step>> steps_;  // by group
};

}  // namespace ptx
