#include "runtime_memory.h"

#include <algorithm>

#include "machine.h"
#include "stream_capture.h"

namespace emu {
namespace {

bool overlap(const char* a, size_t a_bytes, const char* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

RuntimeMemory& RuntimeMemory::get() {
  static auto& memory = *new RuntimeMemory;  // never destroyed: others free at the end
  return memory;
}

bool RuntimeMemory::hold(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (held_ + bytes > limit_) return false;
  held_ += bytes;
  most_ = std::max(most_, held_);
  return true;
}

void RuntimeMemory::release(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_ -= bytes;
}

size_t RuntimeMemory::held() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

size_t RuntimeMemory::held_at_most() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return most_;
}

void RuntimeMemory::forget_most() {
  const std::lock_guard<std::mutex> lock(mutex_);
  most_ = held_;
}

void RuntimeMemory::limit(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
}

void RuntimeMemory::add(const void* begin, size_t bytes, Kind kind) {
  if (bytes == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  pieces_[static_cast<const char*>(begin)] = {bytes, kind};
}

void RuntimeMemory::remove(const void* begin, Kind kind) {
  const auto* address = static_cast<const char*>(begin);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pieces_.find(address);
  if (found == pieces_.end() || found->second.kind != kind)
    throw KernelError("memory is freed that was not allocated so, or is free already");
  const size_t bytes = found->second.bytes;
  const bool any = forget([&](const PendingCopy& copy) {
    return overlap(address, bytes, copy.source, copy.copied.size()) ||
           overlap(address, bytes, copy.destination, copy.copied.size());
  });
  if (any) throw KernelError("memory is freed before a copy from or to it was waited for");
  if (kind == Kind::kDevice) held_ -= bytes;
  pieces_.erase(found);
}

bool RuntimeMemory::forget(const std::function<bool(const PendingCopy&)>& is_meant) {
  const auto end = std::remove_if(pending_.begin(), pending_.end(), is_meant);
  const bool any = end != pending_.end();
  pending_.erase(end, pending_.end());
  return any;
}

size_t RuntimeMemory::bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t sum = 0;
  for (const auto& [begin, piece] : pieces_) sum += piece.bytes;
  return sum;
}

std::map<const char*, RuntimeMemory::Piece>::const_iterator RuntimeMemory::find(
    const char* address) const {
  auto found = pieces_.upper_bound(address);
  if (found == pieces_.begin()) return pieces_.end();
  --found;
  return address < found->first + found->second.bytes ? found : pieces_.end();
}

void RuntimeMemory::check_bounds(const void* begin, size_t bytes) {
  if (begin == nullptr && bytes > 0) throw KernelError("a copy has no memory");
  const auto* address = static_cast<const char*>(begin);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find(address);
  if (found != pieces_.end() && address + bytes > found->first + found->second.bytes)
    throw KernelError("a copy goes beyond the memory in which it begins");
}

void RuntimeMemory::copy(const void* destination, const void* source, size_t bytes,
                         const void* stream) {
  if (bytes == 0) return;
  check_bounds(destination, bytes);
  check_bounds(source, bytes);
  const auto* from = static_cast<const char*>(source);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find(from);
  if (found == pieces_.end() || found->second.kind != Kind::kPinned) return;
  if (StreamCapture::is_active())
    throw KernelError("a copy from host memory, which its graph would read in each replay");
  const bool any = forget([&](const PendingCopy& copy) {
    return overlap(from, bytes, copy.source, copy.copied.size());
  });
  if (any) throw KernelError("a copy reads host memory before the last one from it was waited for");
  pending_.push_back(
      {static_cast<const char*>(destination), from, {from, from + bytes}, {stream, ++num_copies_}});
}

StreamMoment RuntimeMemory::moment(const void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {stream, num_copies_};
}

void RuntimeMemory::wait(const StreamMoment& moment) {
  finish([&](const StreamMoment& each) {
    return each.stream == moment.stream && each.number <= moment.number;
  });
}

void RuntimeMemory::wait_for_stream(const void* stream) {
  finish([&](const StreamMoment& each) { return each.stream == stream; });
}

void RuntimeMemory::wait_for_device() {
  finish([](const StreamMoment&) { return true; });
}

void RuntimeMemory::finish(const std::function<bool(const StreamMoment&)>& is_done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto end = std::partition(pending_.begin(), pending_.end(),
                                  [&](const PendingCopy& copy) { return !is_done(copy.moment); });
  const bool all_stayed = std::all_of(end, pending_.end(), [](const PendingCopy& copy) {
    return std::equal(copy.copied.begin(), copy.copied.end(), copy.source);
  });
  pending_.erase(end, pending_.end());
  if (!all_stayed)
    throw KernelError("host memory was written before the copy that reads it was done");
}

}  // namespace emu

// For tests in Python: of tensors, and of all that is held.
extern "C" __attribute__((visibility("default"))) bool quire_emulated_hold_memory(uint64_t bytes) {
  return emu::RuntimeMemory::get().hold(bytes);
}

extern "C" __attribute__((visibility("default"))) void quire_emulated_release_memory(
    uint64_t bytes) {
  emu::RuntimeMemory::get().release(bytes);
}

extern "C" __attribute__((visibility("default"))) uint64_t quire_emulated_held_memory() {
  return emu::RuntimeMemory::get().held();
}

extern "C" __attribute__((visibility("default"))) uint64_t quire_emulated_most_memory() {
  return emu::RuntimeMemory::get().held_at_most();
}

extern "C" __attribute__((visibility("default"))) void quire_emulated_forget_most_memory() {
  emu::RuntimeMemory::get().forget_most();
}

extern "C" __attribute__((visibility("default"))) void quire_emulated_limit_memory(uint64_t bytes) {
  emu::RuntimeMemory::get().limit(bytes);
}
