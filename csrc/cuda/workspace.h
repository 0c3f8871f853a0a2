// Device memory that operations use while they run, kept from one to the next.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/launch.h"

namespace quire::cuda {

// Grows and never shrinks. What runs on one stream may share one; what runs at once may not.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { cudaFree(data_); }

  // Hands out pieces from the beginning again; at least `bytes` together, each rounded up to 256.
  void begin(size_t bytes, cudaStream_t stream) {
    used_ = 0;
    if (bytes <= bytes_) return;
    check(cudaStreamSynchronize(stream), "workspace");  // what was there may be in use
    check(cudaFree(data_), "workspace");
    data_ = nullptr;
    bytes_ = 0;
    bytes += bytes / 2;  // what grows by little grows often
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

// Pieces that stay where they are as long as this lives, as what a captured graph refers to must.
// Everybody is handed the same memory until somebody wants more.
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
