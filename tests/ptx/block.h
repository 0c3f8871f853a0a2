// The threads of a block, which take turns warp by warp, and what they share.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "block_order.h"
#include "counters.h"
#include "program.h"
#include "shared_memory.h"
#include "warp.h"
#include "warpgroup_order.h"

namespace ptx {

struct Size {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;

  uint64_t count() const { return uint64_t{x} * y * z; }
};

// In which order warps and blocks get their turn, and when copies read their source.
struct Order {
  bool is_reverse = false;
  bool is_shuffled = false;  // warps change places after a few instructions
  bool copies_are_early = false;
  unsigned seed = 1;
};

struct Launch {
  const Program& program;
  std::vector<std::byte> parameters;
  Size grid;
  Size threads;
  size_t dynamic_shared_bytes;
  Order order;
  Counters& counters;
  BlockOrder& blocks;  // what one has seen of another's writes
};

class Block {
 public:
  explicit Block(const Launch& launch);

  // Runs the block of an index. Throws KernelError.
  void run(Size index, uint32_t number);

  const Program& program() const { return launch_.program; }
  const Size& index() const { return index_; }
  const Size& grid() const { return launch_.grid; }
  const Size& threads() const { return launch_.threads; }
  const Order& order() const { return launch_.order; }
  const std::vector<std::byte>& parameters() const { return launch_.parameters; }
  SharedMemory& shared() { return shared_; }
  WarpgroupOrder& warpgroups() { return warpgroups_; }
  BlockOrder& blocks() { return launch_.blocks; }
  Counters& counters() { return launch_.counters; }

  // Its number in the grid, and the barriers that it has passed, in all blocks of the launch.
  uint32_t number() const { return number_; }
  uint32_t epoch() const { return epoch_; }

  // A thread writes to global memory what it passes on later, by a release.
  void wrote(int thread) {
    writer_ = written_epoch_ == epoch_ && writer_ != thread ? kSeveral : thread;
    written_epoch_ = epoch_;
  }

  // Whether others have written there since the last barrier: a release does not pass that on.
  bool others_wrote(int thread) const { return written_epoch_ == epoch_ && writer_ != thread; }

  void count(const Instruction& instruction) {
    ++launch_.counters
          .performed[static_cast<size_t>(&instruction - launch_.program.instructions.data())];
  }

 private:
  static constexpr int kSeveral = -1;

  bool take_turns();

  const Launch& launch_;
  SharedMemory shared_;
  WarpgroupOrder warpgroups_;
  std::vector<std::unique_ptr<Warp>> warps_;
  Size index_;
  uint32_t number_ = 0;
  uint32_t epoch_ = 0;
  uint32_t written_epoch_ = 0;
  int writer_ = kSeveral;
  std::mt19937 random_;
};

}  // namespace ptx
