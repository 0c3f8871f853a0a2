// Copies from the host to the device, step after step, without waiting for the device.
#pragma once

#include <cstddef>

#include "cuda/launch.h"

namespace quire::cuda {

// Pinned host memory. (From other memory a large copy first waits for all work of the stream.)
class UploadBuffer {
 public:
  UploadBuffer() = default;
  UploadBuffer(const UploadBuffer&) = delete;
  UploadBuffer& operator=(const UploadBuffer&) = delete;
  ~UploadBuffer() {
    if (sent_ != nullptr) {
      cudaEventSynchronize(sent_);
      cudaEventDestroy(sent_);
    }
    cudaFreeHost(data_);
  }

  // Returns memory to fill, once the last copy from it is done.
  char* begin(size_t bytes) {
    if (sent_ == nullptr) {
      check(cudaEventCreateWithFlags(&sent_, cudaEventDisableTiming), "upload");
    } else {
      check(cudaEventSynchronize(sent_), "upload");
    }
    if (bytes > bytes_) {
      check(cudaFreeHost(data_), "upload");
      data_ = nullptr;
      bytes_ = 0;
      check(cudaMallocHost(&data_, 2 * bytes), "upload");
      bytes_ = 2 * bytes;
    }
    return static_cast<char*>(data_);
  }

  // Copies the first `bytes` of it.
  void send(void* device, size_t bytes, cudaStream_t stream) {
    check(cudaMemcpyAsync(device, data_, bytes, cudaMemcpyDefault, stream), "upload");
    check(cudaEventRecord(sent_, stream), "upload");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  cudaEvent_t sent_ = nullptr;
};

}  // namespace quire::cuda
