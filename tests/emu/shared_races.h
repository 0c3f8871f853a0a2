// Who may read what asynchronous copies write to shared memory, and when it may be written again.
//
// On a GPU a thread that waits for its copies sees those alone: others see them after a barrier
// that both have passed, and a copy may not begin before a barrier that those who read the place
// have passed since. Reads are those of ldmatrix, which a whole warp makes. Collectives such as
// shuffles and ldmatrix bring lanes together but order no memory, so that a kernel without the
// barrier computes the right thing in most orders of turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu {

// Barriers that a thread has passed.
struct Passed {
  int of_warp = 0;  // __syncwarp and __syncthreads
  int of_block = 0;
};

class SharedRaces {
 public:
  static constexpr size_t kChunkBytes = 16;

  SharedRaces(size_t bytes, int num_warps)
      : num_warps_(num_warps),
        chunks_((bytes + kChunkBytes - 1) / kChunkBytes),
        reads_(chunks_.size() * num_warps) {}

  void begin_block() {
    chunks_.assign(chunks_.size(), {});
    reads_.assign(reads_.size(), kNever);
  }

  // A thread of a warp begins a copy. Returns what is wrong with it, or null.
  const char* begin_copy(size_t offset, int warp, const Passed& passed) {
    Chunk& chunk = chunks_[offset / kChunkBytes];
    if (chunk.is_filled) return "a copy to where another is under way";
    Passed* reads = &reads_[offset / kChunkBytes * num_warps_];
    for (int w = 0; w < num_warps_; ++w) {
      if (!is_after(passed, reads[w], w == warp)) return "a copy to where others may yet read";
      reads[w] = kNever;
    }
    chunk = {true, true, warp, {}};
    return nullptr;
  }

  // The thread has waited for the copy.
  void end_copy(size_t offset, const Passed& passed) {
    Chunk& chunk = chunks_[offset / kChunkBytes];
    chunk.is_filled = false;
    chunk.waited = passed;
  }

  // A warp reads. What was not copied is not looked at.
  const char* read(size_t offset, int warp, const Passed& passed) {
    const Chunk& chunk = chunks_[offset / kChunkBytes];
    if (chunk.is_filled) return "a read of what a copy is filling";
    if (chunk.was_copied && !is_after(passed, chunk.waited, chunk.writer == warp))
      return "a read of what another thread's copy has brought, without a barrier";
    reads_[offset / kChunkBytes * num_warps_ + warp] = passed;
    return nullptr;
  }

 private:
  struct Chunk {
    bool was_copied = false;
    bool is_filled = false;
    int writer = 0;  // its warp
    Passed waited;
  };

  static constexpr Passed kNever{-1, -1};

  // Whether a barrier was passed since, counted by the warp's own or the block's.
  static bool is_after(const Passed& now, const Passed& then, bool same_warp) {
    return same_warp ? now.of_warp > then.of_warp : now.of_block > then.of_block;
  }

  int num_warps_;
  std::vector<Chunk> chunks_;
  std::vector<Passed> reads_;  // [chunks, warps], the last
};

}  // namespace emu
