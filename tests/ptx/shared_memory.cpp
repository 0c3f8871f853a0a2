#include "shared_memory.h"

#include <algorithm>
#include <cstring>

#include "program.h"

namespace ptx {
namespace {

constexpr int kPoison = 0xff;  // NaN as floating point of any size
constexpr uint32_t kProductBytes = 16;

}  // namespace

SharedMemory::SharedMemory(size_t bytes, unsigned granule, int num_threads)
    : memory_(bytes),
      places_((bytes + granule - 1) / granule),
      shift_(static_cast<unsigned>(__builtin_ctz(granule))),
      num_threads_(num_threads) {}

void SharedMemory::begin_block() {
  std::memset(memory_.data(), kPoison, memory_.size());
  std::fill(places_.begin(), places_.end(), Place{});
  fences_.begin_block();
}

const char* SharedMemory::check_read(const Place& place, const Toucher& who) const {
  if (place.is_pending) return "a race: a read of what a copy is filling";
  if (!place.is_written) return "a read of shared memory that nothing has written";
  if (place.written_block_epoch != who.block_epoch) return nullptr;
  if (place.writer_warp != who.warp)
    return "a race: a read of what another warp has written, without bar.sync";
  if (place.writer_lane != who.lane && place.written_warp_epoch == who.warp_epoch)
    return "a race: a read of what another lane has written, without bar.warp.sync";
  return nullptr;
}

const char* SharedMemory::check_write(const Place& place, const Toucher& who) const {
  if (place.is_pending) return "a race: a write to what a copy is filling";
  if (place.num_products != 0)
    return "a race: a write to what a product of a warpgroup may yet read";
  if (place.is_written && place.written_block_epoch == who.block_epoch) {
    if (place.writer_warp != who.warp)
      return "a race: a write over what another warp has written, without bar.sync";
    if (place.writer_lane != who.lane && place.written_warp_epoch == who.warp_epoch)
      return "a race: a write over what another lane has written, without bar.warp.sync";
  }
  if (place.reader_lanes != 0 && place.read_block_epoch == who.block_epoch) {
    if (place.reader_warp != who.warp)
      return "a race: a write to what another warp may yet read, without bar.sync";
    const bool by_others = (place.reader_lanes & ~who.lanes()) != 0;
    if (by_others && place.read_warp_epoch == who.warp_epoch)
      return "a race: a write to what another lane may yet read, without bar.warp.sync";
  }
  return nullptr;
}

// Whether products may read what was written: its writers have fenced it and passed a barrier
// since.
bool SharedMemory::is_fenced(const Place& place, uint32_t block_epoch) const {
  if (place.writer_warp == kSeveral || place.writer_lane == kSeveral)
    return fences_.all_have_passed(num_threads_, place.written_at, block_epoch);
  const int thread = place.writer_warp * kWarpSize + place.writer_lane;
  return fences_.has_passed(thread, place.written_at, block_epoch);
}

void SharedMemory::note_write(Place* place, const Toucher& who) const {
  place->written_block_epoch = who.block_epoch;
  place->written_warp_epoch = who.warp_epoch;
  place->writer_warp = static_cast<int16_t>(who.warp);
  place->writer_lane = static_cast<int16_t>(who.lane);
  place->is_written = true;
  place->is_atomic = false;
  place->written_at = fences_.now();
  place->reader_lanes = 0;  // this write was checked against them, and they precede the next one
}

void SharedMemory::note_read(Place* place, const Toucher& who) {
  const bool is_same_epoch = place->reader_lanes != 0 && place->read_block_epoch == who.block_epoch;
  if (is_same_epoch && place->reader_warp != who.warp) {
    place->reader_warp = kSeveral;
    return;
  }
  if (!is_same_epoch || place->read_warp_epoch != who.warp_epoch) place->reader_lanes = 0;
  place->read_block_epoch = who.block_epoch;
  place->read_warp_epoch = who.warp_epoch;
  place->reader_warp = static_cast<int16_t>(who.warp);
  place->reader_lanes |= who.lanes();
}

const char* SharedMemory::load(const Toucher& who, uint32_t address, int bytes, void* values) {
  const uint32_t last = (address + static_cast<uint32_t>(bytes) - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    if (const char* wrong = check_read(places_[i], who)) return wrong;
    note_read(&places_[i], who);
  }
  std::memcpy(values, &memory_[address], static_cast<size_t>(bytes));
  return nullptr;
}

const char* SharedMemory::store(const Toucher& who, uint32_t address, int bytes,
                                const void* values) {
  const auto count = static_cast<size_t>(bytes);
  const uint32_t last = (address + static_cast<uint32_t>(bytes) - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    Place& place = places_[i];
    const char* wrong = check_write(place, who);
    if (wrong == nullptr) {
      note_write(&place, who);
      continue;
    }
    // Several may write the same value over what nobody has read since: whichever is last.
    const bool is_same_epoch = place.is_written && !place.is_pending && !place.is_atomic &&
                               place.written_block_epoch == who.block_epoch &&
                               place.reader_lanes == 0;
    if (!is_same_epoch || std::memcmp(&memory_[address], values, count) != 0) return wrong;
    if (place.writer_warp != who.warp) place.writer_warp = kSeveral;
    place.writer_lane = kSeveral;
    place.written_at = fences_.now();
  }
  std::memcpy(&memory_[address], values, count);
  return nullptr;
}

const char* SharedMemory::atomic(const Toucher& who, uint32_t address, int bytes,
                                 std::byte** where) {
  const uint32_t last = (address + static_cast<uint32_t>(bytes) - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    Place& place = places_[i];
    if (!place.is_written) return "an atomic on shared memory that nothing has written";
    const bool follows_atomic =
        place.is_atomic && place.reader_lanes == 0 && place.written_block_epoch == who.block_epoch;
    if (follows_atomic) {
      if (place.writer_warp != who.warp) place.writer_warp = kSeveral;
      if (place.writer_lane != who.lane) place.writer_lane = kSeveral;
      place.written_warp_epoch = std::max(place.written_warp_epoch, who.warp_epoch);
      place.written_at = fences_.now();
      continue;
    }
    if (const char* wrong = check_write(place, who)) return wrong;
    note_write(&place, who);
    place.is_atomic = true;
  }
  *where = &memory_[address];
  return nullptr;
}

const char* SharedMemory::begin_copy(const Toucher& who, uint32_t address, int bytes) {
  const uint32_t last = (address + static_cast<uint32_t>(bytes) - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    if (places_[i].is_pending) return "a race: a copy to where another is under way";
    if (const char* wrong = check_write(places_[i], who)) return wrong;
    places_[i].is_pending = true;
  }
  std::memset(&memory_[address], kPoison, static_cast<size_t>(bytes));
  return nullptr;
}

void SharedMemory::end_copy(const Toucher& who, uint32_t address, int bytes, const void* values) {
  const uint32_t last = (address + static_cast<uint32_t>(bytes) - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    places_[i].is_pending = false;
    note_write(&places_[i], who);
  }
  std::memcpy(&memory_[address], values, static_cast<size_t>(bytes));
}

const char* SharedMemory::begin_product(const Toucher& who, uint32_t address) {
  const uint32_t last = (address + kProductBytes - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    if (const char* wrong = check_read(places_[i], who)) return wrong;
    if (!is_fenced(places_[i], who.block_epoch))
      return "a race: a product of what was written without fence.proxy.async and bar.sync";
    ++places_[i].num_products;
  }
  return nullptr;
}

void SharedMemory::end_product(const Toucher& who, uint32_t address) {
  const uint32_t last = (address + kProductBytes - 1) >> shift_;
  for (uint32_t i = address >> shift_; i <= last; ++i) {
    --places_[i].num_products;
    note_read(&places_[i], who);
  }
}

}  // namespace ptx
