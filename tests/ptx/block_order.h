// What blocks of a launch may read of each other's writes to global memory.
//
// A thread's writes are there for others behind a fence of its own (membar.gl), or behind a barrier
// and a fence of any thread that passed it. An atomic shows to the next one on its address what was
// fenced before it, by its thread or before a barrier; a thread may read that behind a fence which
// follows the atomic, its own or one before a barrier that it has passed since. This is the pattern
// by which blocks meet: write, fence, barrier, count arrivals; then barrier, fence, read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "global_memory.h"

namespace ptx {

class BlockOrder {
 public:
  BlockOrder(uint32_t launch, size_t threads_of_block)
      : launch_(launch), num_threads_(threads_of_block) {}

  struct Who {
    uint32_t block;
    uint32_t epoch;  // barriers that the block has passed
    uint16_t thread;
  };

  void fence(const Who& who);
  void atomic(const Who& who, uint64_t address);
  WordWriter writer(const Who& who) const;
  // Whether `who` may read, or write over, what the word's writer has written.
  bool is_visible(const Who& who, const WordWriter& word) const;

 private:
  // Which writes of a block are seen: of each thread those before so many of its fences, and all of
  // epochs before `all_before`.
  struct Seen {
    std::vector<uint32_t> fences;
    uint32_t all_before = 0;
  };
  using View = std::map<uint32_t, std::shared_ptr<const Seen>>;  // by block

  struct Thread {
    uint32_t fences = 0;
    uint32_t fences_before_epoch = 0;
    uint32_t fence_epoch = 0;  // of the last
    View known;
    uint32_t known_epoch = 0;
  };
  // What an atomic has read.
  struct Reading {
    uint32_t epoch;
    uint16_t thread;
    View view;
  };
  struct BlockState {
    std::vector<Thread> threads;
    std::vector<Reading> readings;
  };

  BlockState& state(uint32_t block);
  Seen seen_now(const Who& who, const BlockState& block) const;
  static void join(View* into, const View& other);
  static bool covers(const View& view, const WordWriter& word);

  uint32_t launch_;
  size_t num_threads_;
  std::map<uint64_t, View> released_;  // by the address of an atomic
  std::map<uint32_t, BlockState> blocks_;
};

}  // namespace ptx
