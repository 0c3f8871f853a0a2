#include "memory.h"

#include <cstring>

namespace ptx {
namespace {

Toucher toucher(Warp& warp, int lane) {
  return {warp.block().epoch(), warp.epoch, warp.number(), lane};
}

void check_aligned(Warp& warp, int lane, uint64_t address, int bytes) {
  if (address % static_cast<uint64_t>(bytes) != 0) warp.fail("a misaligned address", lane);
}

void check_shared(Warp& warp, int lane, uint32_t address, int bytes) {
  check_aligned(warp, lane, address, bytes);
  if (uint64_t{address} + static_cast<uint64_t>(bytes) > warp.block().shared().bytes())
    warp.fail("an address outside of shared memory", lane);
}

// The allocation that the bytes lie in, if there is one that is known.
Allocation* checked(Warp& warp, int lane, uint64_t address, int bytes, uint64_t* begin) {
  check_aligned(warp, lane, address, bytes);
  if ((warp.after_earlier >> lane & 1) == 0)
    warp.fail("a race: global memory, beside the kernel before this one", lane);
  bool is_inside = false;
  Allocation* const found = global_memory().find(address, bytes, &is_inside, begin);
  if (!is_inside) warp.fail("an address outside of the operation's memory", lane);
  return found;
}

void check_visible(Warp& warp, int lane, const Allocation& allocation, uint64_t first, int bytes) {
  for (uint64_t word = first / 4; word <= (first + static_cast<uint64_t>(bytes) - 1) / 4; ++word) {
    if (!warp.block().blocks().is_visible(who(warp, lane), allocation.writers[word]))
      warp.fail("a race: global memory that another block has written, without a fence", lane);
  }
}

}  // namespace

BlockOrder::Who who(Warp& warp, int lane) {
  Block& block = warp.block();
  return {block.number(), block.epoch(), static_cast<uint16_t>(warp.number() * kWarpSize + lane)};
}

void load_shared(Warp& warp, int lane, int reader, uint32_t address, int bytes, void* values) {
  check_shared(warp, lane, address, bytes);
  const char* wrong = warp.block().shared().load(toucher(warp, reader), address, bytes, values);
  if (wrong != nullptr) warp.fail(wrong, lane);
}

void store_shared(Warp& warp, int lane, uint32_t address, int bytes, const void* values) {
  check_shared(warp, lane, address, bytes);
  const char* wrong = warp.block().shared().store(toucher(warp, lane), address, bytes, values);
  if (wrong != nullptr) warp.fail(wrong, lane);
}

std::byte* atomic_shared(Warp& warp, int lane, uint32_t address, int bytes) {
  check_shared(warp, lane, address, bytes);
  std::byte* place = nullptr;
  const char* wrong = warp.block().shared().atomic(toucher(warp, lane), address, bytes, &place);
  if (wrong != nullptr) warp.fail(wrong, lane);
  return place;
}

void begin_copy(Warp& warp, int lane, uint32_t address, int bytes) {
  check_shared(warp, lane, address, bytes);
  const char* wrong = warp.block().shared().begin_copy(toucher(warp, lane), address, bytes);
  if (wrong != nullptr) warp.fail(wrong, lane);
}

void end_copy(Warp& warp, int lane, uint32_t address, int bytes, const void* values) {
  warp.block().shared().end_copy(toucher(warp, lane), address, bytes, values);
}

void begin_product(Warp& warp, uint32_t address) {
  check_shared(warp, 0, address, 16);
  const Toucher who = toucher(warp, Toucher::kSeveralLanes);
  if (const char* wrong = warp.block().shared().begin_product(who, address)) warp.fail(wrong, 0);
}

void end_product(Warp& warp, uint32_t address) {
  warp.block().shared().end_product(toucher(warp, Toucher::kSeveralLanes), address);
}

void load_global(Warp& warp, int lane, uint64_t address, int bytes, void* values, bool is_strong) {
  uint64_t begin = 0;
  if (const Allocation* found = checked(warp, lane, address, bytes, &begin)) {
    for (uint64_t i = 0; i < static_cast<uint64_t>(bytes); ++i) {
      if (!found->is_written[address - begin + i])
        warp.fail("a read of global memory that nothing has written", lane);
    }
    if (!is_strong) check_visible(warp, lane, *found, address - begin, bytes);
  }
  std::memcpy(values, reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
}

void store_global(Warp& warp, int lane, uint64_t address, int bytes, const void* values,
                  bool is_strong) {
  uint64_t begin = 0;
  if (Allocation* found = checked(warp, lane, address, bytes, &begin)) {
    const uint64_t first = address - begin;
    const uint64_t end = first + static_cast<uint64_t>(bytes);
    if (!is_strong) check_visible(warp, lane, *found, first, bytes);
    for (uint64_t i = first; i < end; ++i) found->is_written[i] = true;
    for (uint64_t word = first / 4; word <= (end - 1) / 4; ++word)
      found->writers[word] = warp.block().blocks().writer(who(warp, lane));
  }
  std::memcpy(reinterpret_cast<void*>(address), values, static_cast<size_t>(bytes));
}

std::byte* atomic_global(Warp& warp, int lane, uint64_t address, int bytes) {
  uint64_t begin = 0;
  if (const Allocation* found = checked(warp, lane, address, bytes, &begin)) {
    for (uint64_t i = 0; i < static_cast<uint64_t>(bytes); ++i) {
      if (!found->is_written[address - begin + i])
        warp.fail("an atomic on global memory that nothing has written", lane);
    }
  }
  warp.block().blocks().atomic(who(warp, lane), address);
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace ptx
