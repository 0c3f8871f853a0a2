// 32 lanes with a program counter each.
//
// Lanes of the same place go on together, those of the lowest place first; after a branch that only
// some take they meet again where their places are the same. No kernel may count on that: what
// lanes write for each other counts as seen behind a barrier alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "products.h"
#include "program.h"

namespace ptx {

class Block;

// One register: a value for each lane, or of a predicate a bit.
struct alignas(64) Register32 {
  std::byte bytes[kWarpSize * 8];
};

// A copy to shared memory that has begun.
struct AsyncCopy {
  int lane;
  int group;  // of the lane, by number
  uint32_t shared;
  uint64_t global;
  int valid_bytes;  // the rest of 16 becomes zero
  std::byte early[16];
};

class Warp {
 public:
  enum class State { kReady, kAtBarrier, kDone };

  Warp(Block& block, int number);

  // Begins the program for a block's threads.
  void begin(uint32_t lanes);

  // Goes on until it has to wait for the block, has ended, or has performed so many instructions.
  //
  // Throws KernelError.
  void run(uint64_t max_instructions);

  template <typename T>
  T* values(uint16_t number) {
    return reinterpret_cast<T*>(registers_[number].bytes);
  }
  uint32_t& predicate(uint16_t number) { return *values<uint32_t>(number); }

  Block& block() { return block_; }
  int number() const { return number_; }
  State state() const { return state_; }
  void release();  // from the barrier

  // Barriers of the warp that it has passed.
  uint32_t epoch = 0;

  // Lanes for which the kernel before this one in the stream is over.
  uint32_t after_earlier = 0;

  // Asynchronous copies under way.
  std::vector<AsyncCopy> copies;
  int copy_groups[kWarpSize] = {};  // that each lane has closed

  // Those of its warpgroup.
  Products products;

  // Refuses a read of what some of the lanes have not written.
  void check_defined(uint16_t number, uint32_t lanes) const;
  // Registers hold values of all lanes from now on.
  void define(const std::vector<uint16_t>& numbers);

  uint64_t performed() const { return performed_; }

  // The instruction that is performed.
  const Instruction& instruction() const;

  [[noreturn]] void fail(const std::string& what, int lane) const;

 private:
  bool choose_lanes();
  void perform(const Instruction& instruction);
  bool may_begin(const Instruction& instruction);
  void check_defined(const Instruction& instruction, uint32_t lanes);
  void check_lent(const Instruction& instruction);
  void check_copies(uint32_t lanes) const;
  void go_to(uint32_t lanes, int place);

  Block& block_;
  const Program& program_;
  int number_;
  State state_ = State::kDone;
  std::vector<Register32> registers_;
  std::vector<uint32_t> defined_;  // lanes that have written a register
  uint32_t all_ = 0;
  uint32_t live_ = 0;
  uint32_t active_ = 0;
  uint32_t waiting_ = 0;  // for other lanes
  int place_ = 0;         // of the active lanes
  int next_parked_ = 0;   // the lowest place of the others
  int places_[kWarpSize] = {};
  uint64_t performed_ = 0;  // instructions
  uint64_t performed_at_retry_ = 0;
};

}  // namespace ptx
