// The shared memory of a block, and who may touch what of it.
//
// Two accesses to a place by different threads, of which one writes, need a barrier between them:
// bar.sync if their warps differ, that or bar.warp.sync if their lanes do. Nothing else orders
// memory: not lockstep, not a shuffle, not ldmatrix. What a copy is about to bring belongs to
// nobody from where it begins until the thread that began it has waited for it, so that neither an
// early nor a late arrival is noticed by chance; then the thread counts as its writer. What a
// product of a warpgroup reads may not be written from where it begins until its warp has waited
// for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proxy_fences.h"

namespace ptx {

// Who touches memory, and which barriers that thread has passed.
struct Toucher {
  static constexpr int kSeveralLanes = -2;

  uint32_t block_epoch;
  uint32_t warp_epoch;
  int warp;
  int lane;

  uint32_t lanes() const { return lane == kSeveralLanes ? ~0u : 1u << lane; }
};

class SharedMemory {
 public:
  // A place is `granule` bytes.
  SharedMemory(size_t bytes, unsigned granule, int num_threads);

  // Forgets what was written.
  void begin_block();

  size_t bytes() const { return memory_.size(); }

  // Each returns what is wrong, or null. Addresses are inside, aligned to the size.
  const char* load(const Toucher& who, uint32_t address, int bytes, void* values);
  const char* store(const Toucher& who, uint32_t address, int bytes, const void* values);
  // For a read and a write that nothing comes between; returns the place.
  const char* atomic(const Toucher& who, uint32_t address, int bytes, std::byte** place);
  const char* begin_copy(const Toucher& who, uint32_t address, int bytes);
  void end_copy(const Toucher& who, uint32_t address, int bytes, const void* values);
  // A product of the whole warp reads 16 bytes, at any time until it ends.
  const char* begin_product(const Toucher& who, uint32_t address);
  void end_product(const Toucher& who, uint32_t address);
  const std::byte* at(uint32_t address) const { return &memory_[address]; }

  // A thread makes what it wrote ready for products.
  void fence(int thread, uint32_t block_epoch) { fences_.fence(thread, block_epoch); }

 private:
  static constexpr int16_t kSeveral = -1;  // warps or lanes

  struct Place {
    // The last write.
    uint32_t written_block_epoch = 0;
    uint32_t written_warp_epoch = 0;
    int16_t writer_warp = 0;
    int16_t writer_lane = 0;
    bool is_written = false;
    bool is_atomic = false;
    bool is_pending = false;
    uint32_t written_at = 0;    // a moment of `fences_`
    uint16_t num_products = 0;  // that may yet read it
    // The last reads: those of one epoch of the block, and of one of the warp if one warp read.
    uint32_t read_block_epoch = 0;
    uint32_t read_warp_epoch = 0;
    int16_t reader_warp = 0;
    uint32_t reader_lanes = 0;
  };

  const char* check_read(const Place& place, const Toucher& who) const;
  const char* check_write(const Place& place, const Toucher& who) const;
  bool is_fenced(const Place& place, uint32_t block_epoch) const;
  void note_write(Place* place, const Toucher& who) const;
  static void note_read(Place* place, const Toucher& who);

  std::vector<std::byte> memory_;
  std::vector<Place> places_;
  unsigned shift_;  // from an address to its place
  int num_threads_;
  ProxyFences fences_;
};

}  // namespace ptx
