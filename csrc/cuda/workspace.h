// Device memory that operations use while they run, kept between them.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/launch.h"

namespace quire::cuda {

// Grows and never shrinks. Operations on one stream may share it, concurrent ones may not.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { cudaFree(data_); }

  // Starts again from the beginning, with room for `bytes` of pieces, each rounded up to 256.
  void begin(size_t bytes, cudaStream_t stream) {
    used_ = 0;
    if (bytes <= bytes_) return;
    check(cudaStreamSynchronize(stream), "workspace");  // the old memory may be in use
    check(cudaFree(data_), "workspace");
    data_ = nullptr;
    bytes_ = 0;
    bytes += bytes / 2;  // room for growth, so that small steps do not reallocate
    check(cudaMalloc(&data_, bytes), "workspace");
    bytes_ = bytes;
  }

  template <typename T>
  T* take(size_t count) {
    T* piece = reinterpret_cast<T*>(static_cast<char*>(data_) + used_);
    used_ += piece_bytes<T>(count);
    return piece;
  }

  template <typename T>
  static size_t piece_bytes(size_t count) {
    return (count * sizeof(T) + 255) / 256 * 256;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  size_t used_ = 0;
};

// Memory that stays in place as long as this lives, as captured graphs need. Every call of `take`
// returns the same memory until one asks for more.
class LastingMemory {
 public:
  LastingMemory() = default;
  LastingMemory(const LastingMemory&) = delete;
  LastingMemory& operator=(const LastingMemory&) = delete;
  ~LastingMemory() {
    for (void* piece : pieces_) cudaFree(piece);
  }

  void* take(size_t bytes) {
    if (pieces_.empty() || bytes > bytes_) {
      void* piece = nullptr;
      check(cudaMalloc(&piece, bytes), "lasting memory");
      pieces_.push_back(piece);
      bytes_ = bytes;
    }
    return pieces_.back();
  }

 private:
  std::vector<void*> pieces_;
  size_t bytes_ = 0;  // of the last
};

}  // namespace quire::cuda
