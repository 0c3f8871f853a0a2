// Memory that the runtime has allocated or pinned, and copies that may still read or write it.
//
// A copy is made at once, but one from pinned host memory counts as pending until something waits
// for its stream or for an event behind it. Until then its source must stay as it was, and neither
// end may be freed. From other host memory CUDA copies before it returns. Errors are KernelErrors;
// one that a destructor meets ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace emu {

// What was started in a stream before an event was recorded there.
struct StreamMoment {
  const void* stream = nullptr;
  uint64_t number = 0;
};

class RuntimeMemory {
 public:
  enum class Kind { kDevice, kPinned };

  static RuntimeMemory& get();

  // Counts memory of the device that is held from now on, also that of others than the runtime.
  // Returns false, and counts nothing, where the device has not so much left.
  bool hold(size_t bytes);
  void release(size_t bytes);

  // Of the device: what is held, and what was held at most since `forget_most`.
  size_t held();
  size_t held_at_most();
  void forget_most();

  // What the device has.
  void limit(size_t bytes);

  void add(const void* begin, size_t bytes, Kind kind);

  // Throws KernelError: there is no such memory, or a pending copy has an end in it.
  void remove(const void* begin, Kind kind);

  // All that was added and not removed.
  size_t bytes();

  // Throws KernelError: there is no memory, or it begins in what was added and ends beyond it.
  void check_bounds(const void* begin, size_t bytes);

  // A copy is made, of which is kept what it reads of pinned memory: no byte of that twice.
  //
  // Throws KernelError: it reads what a pending copy reads, or a graph that is captured would read
  // its source in each replay, of which nothing here would know.
  void copy(const void* destination, const void* source, size_t bytes, const void* stream);

  StreamMoment moment(const void* stream);

  // Something has waited. Throws KernelError: a source is not what was copied from it.
  void wait(const StreamMoment& moment);
  void wait_for_stream(const void* stream);
  void wait_for_device();

 private:
  struct Piece {
    size_t bytes;
    Kind kind;
  };
  struct PendingCopy {
    const char* destination;
    const char* source;
    std::vector<char> copied;
    StreamMoment moment;
  };

  // The piece in which an address lies, or the end.
  std::map<const char*, Piece>::const_iterator find(const char* address) const;
  void finish(const std::function<bool(const StreamMoment&)>& is_done);
  // Returns whether there were any such copies. Each is reported once: what frees the memory after
  // an error does not fail again.
  bool forget(const std::function<bool(const PendingCopy&)>& is_meant);

  std::mutex mutex_;
  size_t held_ = 0;
  size_t most_ = 0;
  size_t limit_ = SIZE_MAX;
  std::map<const char*, Piece> pieces_;
  std::vector<PendingCopy> pending_;
  uint64_t num_copies_ = 0;
};

}  // namespace emu
