// Accesses of a lane to shared and global memory, each checked. All throw KernelError.
#pragma once

#include <cstdint>

#include "block.h"
#include "global_memory.h"
#include "shared_memory.h"
#include "warp.h"

namespace ptx {

// Generic addresses from here on are those of shared memory, others those of global memory.
constexpr uint64_t kSharedWindow = uint64_t{1} << 62;

// `lane` asks, `reader` gets what was read: a lane or Toucher::kSeveralLanes.
void load_shared(Warp& warp, int lane, int reader, uint32_t address, int bytes, void* values);
void store_shared(Warp& warp, int lane, uint32_t address, int bytes, const void* values);
// The place of a read and a write at once.
std::byte* atomic_shared(Warp& warp, int lane, uint32_t address, int bytes);
void begin_copy(Warp& warp, int lane, uint32_t address, int bytes);
void end_copy(Warp& warp, int lane, uint32_t address, int bytes, const void* values);
// 16 bytes that a product of a warpgroup reads between the two.
void begin_product(Warp& warp, uint32_t address);
void end_product(Warp& warp, uint32_t address);

void load_global(Warp& warp, int lane, uint64_t address, int bytes, void* values,
                 bool is_strong = false);
void store_global(Warp& warp, int lane, uint64_t address, int bytes, const void* values,
                  bool is_strong = false);
std::byte* atomic_global(Warp& warp, int lane, uint64_t address, int bytes);

BlockOrder::Who who(Warp& warp, int lane);

}  // namespace ptx
