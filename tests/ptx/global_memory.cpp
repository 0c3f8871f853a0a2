#include "global_memory.h"

#include <algorithm>
#include <cstring>

namespace ptx {

GlobalMemory& global_memory() {
  static auto& memory = *new GlobalMemory;  // never destroyed: others free at the end
  return memory;
}

void GlobalMemory::allocated(void* begin, size_t bytes, bool is_pinned) {
  allocations_[reinterpret_cast<uint64_t>(begin)] = {
      bytes, std::vector<bool>(bytes), std::vector<WordWriter>((bytes + 3) / 4), is_pinned};
}

void GlobalMemory::freed(void* begin) {
  allocations_.erase(reinterpret_cast<uint64_t>(begin));
}

void GlobalMemory::written(const void* begin, size_t bytes) {
  bool is_inside = false;
  uint64_t from = 0;
  const auto address = reinterpret_cast<uint64_t>(begin);
  Allocation* found = find(address, 1, &is_inside, &from);
  if (found == nullptr) return;
  const auto first = found->is_written.begin() + static_cast<int64_t>(address - from);
  std::fill(first, first + static_cast<int64_t>(bytes), true);
}

void GlobalMemory::keep() {
  kept_.clear();
  for (const auto& [begin, allocation] : allocations_) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(begin);
    kept_[begin].assign(bytes, bytes + allocation.bytes);
  }
}

void GlobalMemory::put_back() {
  for (const auto& [begin, bytes] : kept_) {
    const auto found = allocations_.find(begin);
    if (found == allocations_.end() || found->second.bytes != bytes.size()) continue;
    auto* const memory = reinterpret_cast<std::byte*>(begin);
    const Allocation& allocation = found->second;
    if (!allocation.is_pinned) {
      std::memcpy(memory, bytes.data(), bytes.size());
      continue;
    }
    for (size_t word = 0; word < allocation.writers.size(); ++word) {
      if (allocation.writers[word].launch == 0) continue;
      const size_t from = 4 * word;
      std::memcpy(memory + from, &bytes[from], std::min<size_t>(4, bytes.size() - from));
    }
  }
  kept_.clear();
}

void GlobalMemory::set_tensors(const std::map<uint64_t, size_t>& sizes) {
  tensors_ = sizes;
  last_begin_ = last_end_ = 0;
}

Allocation* GlobalMemory::find(uint64_t address, int bytes, bool* is_inside, uint64_t* begin) {
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  *is_inside = true;
  if (address >= last_begin_ && end <= last_end_) return nullptr;
  const auto tensor = tensors_.upper_bound(address);
  if (tensor != tensors_.begin()) {
    const auto& [from, size] = *std::prev(tensor);
    if (end <= from + size) {
      last_begin_ = from;
      last_end_ = from + size;
      return nullptr;
    }
  }
  const auto found = allocations_.upper_bound(address);
  if (found != allocations_.begin()) {
    auto& [from, allocation] = *std::prev(found);
    *begin = from;
    if (end <= from + allocation.bytes) return &allocation;
  }
  *is_inside = tensors_.empty();
  return nullptr;
}

}  // namespace ptx
