// Device memory that other processes open: cudaIpc* and what decides who may reach whom.
//
// An allocation of whole units of 2 MB, which a driver would share as they are, lies in a file
// without a name; another process finds that among the open files of this one. Every process has a
// GPU of its own, and reaches all others.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace emu {

class SharedMemory {
 public:
  static constexpr size_t kUnit = size_t{2} << 20;

  static SharedMemory& get() {
    static auto& memory = *new SharedMemory;  // never destroyed: others free at the end
    return memory;
  }

  void* allocate(size_t bytes) {
    const int file = memfd_create("emulated", MFD_CLOEXEC);
    if (file < 0) return nullptr;
    void* pointer = ftruncate(file, static_cast<off_t>(bytes)) == 0 ? map(file, bytes) : nullptr;
    if (pointer == nullptr) {
      ::close(file);
    } else {
      keep(pointer, {file, bytes});
    }
    return pointer;
  }

  // Whether this is such memory, which is then freed.
  bool free(void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pieces_.find(pointer);
    if (found == pieces_.end()) return false;
    munmap(pointer, found->second.bytes);
    if (found->second.file >= 0) ::close(found->second.file);
    pieces_.erase(found);
    return true;
  }

  // The name by which others open it; "" if it is no such memory.
  std::string name(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pieces_.find(const_cast<void*>(pointer));
    if (found == pieces_.end()) return "";
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(found->second.file) + " " +
           std::to_string(number_of(found->second.file));
  }

  // Null if its process is gone, or in another container.
  void* open(const std::string& name) {
    const size_t space = name.find(' ');
    const uint64_t number = std::strtoull(name.c_str() + space, nullptr, 10);
    const int file = ::open(name.substr(0, space).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    struct stat status{};
    const bool is_it = number_of(file) == number && fstat(file, &status) == 0;
    const auto bytes = static_cast<size_t>(status.st_size);
    void* pointer = is_it ? map(file, bytes) : nullptr;
    ::close(file);
    if (pointer != nullptr) keep(pointer, {-1, bytes});
    return pointer;
  }

 private:
  struct Piece {
    int file;  // -1 for memory of another process
    size_t bytes;
  };

  // Of a file, that no other has.
  static uint64_t number_of(int file) {
    struct stat status{};
    return fstat(file, &status) == 0 ? status.st_ino : 0;
  }

  static void* map(int file, size_t bytes) {
    void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return pointer == MAP_FAILED ? nullptr : pointer;
  }

  void keep(void* pointer, Piece piece) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_[pointer] = piece;
  }

  std::mutex mutex_;
  std::map<void*, Piece> pieces_;
};

}  // namespace emu

struct cudaIpcMemHandle_t {
  char reserved[64];
};
constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;

inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  const std::string name = emu::SharedMemory::get().name(pointer);
  if (name.empty() || name.size() >= sizeof handle->reserved) return cudaErrorInvalidValue;
  memset(handle->reserved, 0, sizeof handle->reserved);
  name.copy(handle->reserved, name.size());
  return cudaSuccess;
}

inline cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
  *pointer = emu::SharedMemory::get().open(handle.reserved);
  return *pointer != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return emu::SharedMemory::get().free(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int) {
  const std::string own = "emulated:" + std::to_string(getpid());
  own.copy(name, static_cast<size_t>(bytes) - 1);
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* name) {
  *device = name == "emulated:" + std::to_string(getpid()) ? 0 : 1;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceCanAccessPeer(int* can_access, int, int) {
  *can_access = 1;
  return cudaSuccess;
}
