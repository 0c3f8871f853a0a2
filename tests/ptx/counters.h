// What a kernel has done, over all its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ptx {

struct Counters {
  explicit Counters(size_t num_instructions) : performed(num_instructions) {}

  uint64_t launches = 0;
  std::vector<uint64_t> performed;  // by instruction: how often a warp has
  // Shared memory gives one word of each of its 32 banks at a time: such times, and how many there
  // would be if no two lanes wanted different words of a bank.
  uint64_t shared_wavefronts = 0;
  uint64_t shared_ideal = 0;
  // Pieces of 32 bytes of global memory that accesses touched, and how many would hold their bytes.
  uint64_t global_sectors = 0;
  uint64_t global_ideal = 0;
  uint64_t copied_bytes = 0;  // by cp.async
};

// Counts the wavefronts of an access to shared memory: `count` lanes of `bytes` each.
void count_wavefronts(const uint32_t* addresses, int count, int bytes, Counters* counters);

// Counts the sectors of an access to global memory.
void count_sectors(const uint64_t* addresses, int count, int bytes, Counters* counters);

}  // namespace ptx
