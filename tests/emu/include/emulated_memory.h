// The runtime's calls that allocate, copy and wait. Work is done at once; what CUDA would do later
// or refuse is known by RuntimeMemory and StreamCapture.
#pragma once

#include <cstdlib>
#include <cstring>

#include "other_machine.h"
#include "runtime_memory.h"
#include "stream_capture.h"

enum cudaMemcpyKind { cudaMemcpyDefault };

struct EmulatedEvent {
  emu::StreamMoment moment;
};
using cudaEvent_t = EmulatedEvent*;
constexpr unsigned cudaEventDisableTiming = 2;

namespace emu {

inline cudaError_t allocate(const char* call, void** pointer, size_t bytes,
                            RuntimeMemory::Kind kind) {
  if (StreamCapture::refuses(call)) return cudaErrorStreamCaptureUnsupported;
  void* made = nullptr;
  if (bytes > 0) {
    const bool is_device = kind == RuntimeMemory::Kind::kDevice;
    if (is_device && !RuntimeMemory::get().hold(bytes)) return cudaErrorMemoryAllocation;
    const bool is_shareable = bytes % SharedMemory::kUnit == 0;
    made = is_shareable ? SharedMemory::get().allocate(bytes) : std::malloc(bytes);
    if (made == nullptr) {
      if (is_device) RuntimeMemory::get().release(bytes);
      return cudaErrorMemoryAllocation;
    }
    RuntimeMemory::get().add(made, bytes, kind);
    const bool is_pinned = kind == RuntimeMemory::Kind::kPinned;
    if (other_machine != nullptr) other_machine->allocated(made, bytes, is_pinned);
  }
  *pointer = made;
  return cudaSuccess;
}

inline cudaError_t free(const char* call, void* pointer, RuntimeMemory::Kind kind) {
  if (pointer == nullptr) return cudaSuccess;
  if (StreamCapture::refuses(call)) return cudaErrorStreamCaptureUnsupported;
  RuntimeMemory::get().remove(pointer, kind);
  if (other_machine != nullptr) other_machine->freed(pointer);
  if (!SharedMemory::get().free(pointer)) std::free(pointer);
  return cudaSuccess;
}

}  // namespace emu

inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return emu::allocate("cudaMalloc", pointer, bytes, emu::RuntimeMemory::Kind::kDevice);
}

inline cudaError_t cudaFree(void* pointer) {
  return emu::free("cudaFree", pointer, emu::RuntimeMemory::Kind::kDevice);
}

inline cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return emu::allocate("cudaMallocHost", pointer, bytes, emu::RuntimeMemory::Kind::kPinned);
}

inline cudaError_t cudaFreeHost(void* pointer) {
  return emu::free("cudaFreeHost", pointer, emu::RuntimeMemory::Kind::kPinned);
}

inline cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  emu::RuntimeMemory::get().add(pointer, bytes, emu::RuntimeMemory::Kind::kPinned);
  return cudaSuccess;
}

inline cudaError_t cudaHostUnregister(void* pointer) {
  emu::RuntimeMemory::get().remove(pointer, emu::RuntimeMemory::Kind::kPinned);
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes,
                                   cudaMemcpyKind, cudaStream_t stream) {
  emu::RuntimeMemory::get().copy(destination, source, bytes, stream);
  if (bytes > 0) memcpy(destination, source, bytes);
  if (emu::other_machine != nullptr) emu::other_machine->written(destination, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) {
  emu::RuntimeMemory::get().check_bounds(pointer, bytes);
  memset(pointer, value, bytes);
  if (emu::other_machine != nullptr) emu::other_machine->written(pointer, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (emu::StreamCapture::refuses("cudaStreamSynchronize"))
    return cudaErrorStreamCaptureUnsupported;
  emu::RuntimeMemory::get().wait_for_stream(stream);
  return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() {
  if (emu::StreamCapture::refuses("cudaDeviceSynchronize"))
    return cudaErrorStreamCaptureUnsupported;
  emu::RuntimeMemory::get().wait_for_device();
  return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}

inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->moment = emu::RuntimeMemory::get().moment(stream);
  return cudaSuccess;
}

inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (emu::StreamCapture::refuses("cudaEventSynchronize")) return cudaErrorStreamCaptureUnsupported;
  emu::RuntimeMemory::get().wait(event->moment);
  return cudaSuccess;
}
