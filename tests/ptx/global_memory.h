// Device memory, which is the host's: what kernels may touch of it, and what of it holds a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace ptx {

// Whom the last write to a word of 4 bytes was by.
struct WordWriter {
  uint32_t launch = 0;
  uint32_t block = 0;
  uint32_t epoch = 0;   // of the block: barriers passed
  uint32_t fences = 0;  // of the thread: how many it had performed
  uint16_t thread = 0;
};

struct Allocation {
  size_t bytes;
  // Of memory that the kernels' host code allocated: of each byte whether anything has written it,
  // of each word by whom. Of tensors, which tests fill, neither is known.
  std::vector<bool> is_written;
  std::vector<WordWriter> writers;
  bool is_pinned;  // the host's
};

// All of it. Kernels run one at a time.
class GlobalMemory {
 public:
  // Memory that the host code of kernels allocates, frees, and copies to or sets.
  void allocated(void* begin, size_t bytes, bool is_pinned);
  void freed(void* begin);
  void written(const void* begin, size_t bytes);

  // Keeps what is in allocated memory, and puts it back where it is still allocated: a kernel that
  // was stopped leaves counters behind that the next launch counts on. Of pinned memory only what
  // kernels have written: the host writes the rest meanwhile, and copies under way still read it.
  void keep();
  void put_back();

  // Tensors of the operation that runs. While there are any, nothing outside of them and of what
  // was allocated may be touched.
  void set_tensors(const std::map<uint64_t, size_t>& sizes);

  // The allocation that holds the bytes, null if there is none. `is_inside` is whether they may be
  // touched.
  Allocation* find(uint64_t address, int bytes, bool* is_inside, uint64_t* begin);

 private:
  std::map<uint64_t, Allocation> allocations_;
  std::map<uint64_t, std::vector<std::byte>> kept_;
  std::map<uint64_t, size_t> tensors_;
  uint64_t last_begin_ = 0;  // of the tensor that was found last
  uint64_t last_end_ = 0;
};

GlobalMemory& global_memory();

}  // namespace ptx
