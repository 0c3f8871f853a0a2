// Device memory that operations use while they run, kept between them.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <stdexcept>

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
    asked_ = bytes;
    if (bytes <= bytes_) return;
    check(cudaStreamSynchronize(stream), "workspace");  // the old memory may be in use
    check(cudaFree(data_), "workspace");
    data_ = nullptr;
    bytes_ = 0;
    bytes += bytes / 2;  // room for growth, so that small steps do not reallocate
    check(cudaMalloc(&data_, bytes), "workspace");
    bytes_ = bytes;
  }

  // The next piece. Throws std::logic_error if there was no room asked for it.
  template <typename T>
  T* take(size_t count) {
    T* piece = reinterpret_cast<T*>(static_cast<char*>(data_) + used_);
    used_ += piece_bytes<T>(count);
    if (used_ > asked_) throw std::logic_error("workspace: a piece has no room");
    return piece;
  }

  template <typename T>
  static size_t piece_bytes(size_t count) {
    return (count * sizeof(T) + 255) / 256 * 256;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  size_t asked_ = 0;
  size_t used_ = 0;
};

// Memory of one size that never moves, as captured graphs need. The first `get` allocates it, no
// other does, and nothing frees it.
template <size_t kBytes>
class FixedMemory {
 public:
  template <typename T>
  T* get() {
    if (data_ == nullptr) check(cudaMalloc(&data_, kBytes), "fixed memory");
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// The one `T` of a stream, for as long as the process, which has one device, lives. Operations of a
// stream run one after the other and may share it; graphs that were captured there refer to it,
// whatever became of the thread that captured them.
template <typename T>
T& of_stream(cudaStream_t stream) {
  static std::mutex mutex;
  // Never destroyed: at the end of a process the driver is gone first.
  static auto& of_streams = *new std::map<cudaStream_t, T>;
  const std::lock_guard<std::mutex> lock(mutex);
  return of_streams[stream];
}

}  // namespace quire::cuda
