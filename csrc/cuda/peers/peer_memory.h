// Memory that the GPUs of one machine's ranks write and read of each other (peer access), and the
// sum over ranks that is made there (peer_sum.cu).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace quire::cuda {

constexpr int kMaxPeers = 8;
constexpr int kPeerThreads = 512;  // each with 16 bytes of a summand
constexpr int kPeerBlocks = 64;
constexpr int kPeerBlocksOfMultiprocessor = 2;
constexpr int64_t kPeerHalfBytes = int64_t{kPeerBlocks} * kPeerThreads * 16;
constexpr int64_t kPeerFlagsOffset = 2 * kPeerHalfBytes;
constexpr int64_t kPeerFailedOffset =
    kPeerFlagsOffset + kPeerBlocks * kMaxPeers * int64_t{sizeof(uint32_t)};
// A multiple of what the driver shares with another process: of a smaller allocation it would share
// what lies beside it, too.
constexpr int64_t kPeerBytes = int64_t{2} << 20;
static_assert(kPeerFailedOffset + int64_t{sizeof(uint32_t)} <= kPeerBytes);
// A rank reads as many bytes of all ranks at most. From there on the links are the limit, where a
// library that sends each byte fewer times is quicker: NVLink takes 2 to 3 us for a MB, as long as
// the launch and the flags.
constexpr int64_t kPeerTotalBytes = int64_t{1} << 20;

// What a kernel is given of it.
struct PeerView {
  // Two halves for summands, flags [blocks, kMaxPeers], and whether a sum of any rank has failed.
  char* of_rank[kMaxPeers];
  uint32_t* calls;            // [blocks] that each block has done, of this rank alone
  const uint32_t* abandoned;  // in memory of the host
  uint64_t timeout_ns;
  int rank;
  int size;
};

class PeerMemory {
 public:
  // Allocates this rank's memory on the device of the calling thread.
  //
  // Throws std::invalid_argument for a number of ranks other than 2, 4 and 8, std::runtime_error
  // if the device has no memory, or too few multiprocessors.
  PeerMemory(int rank, int size, double timeout_s);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  // Frees nothing: another process may write to this memory still. See `free`.
  ~PeerMemory() = default;

  // By which others open this memory: bytes of one length.
  std::string ticket() const;

  // Opens the memory of all ranks, by their tickets in order of rank. Returns why that cannot be,
  // or
  // "": a rank is on another machine, or its GPU is none that this one reaches.
  std::string open(const std::vector<std::string>& tickets);

  // The largest summand in bytes.
  int64_t max_bytes() const { return kPeerTotalBytes / view_.size; }

  // Ends what waits for other ranks, and all to come, with zeros. From any thread.
  void abandon();

  // Waits for what the device does, and touches other ranks' memory no more.
  void close();

  // Frees this rank's memory; when no other process has it open.
  void free();

  // The others' memory is open. Throws std::runtime_error if it is not.
  const PeerView& view() const;

 private:
  PeerView view_{};
  char* own_ = nullptr;
  uint32_t* counters_ = nullptr;
  uint32_t* abandoned_ = nullptr;
  std::vector<void*> mapped_;  // memory of other processes
  bool is_open_ = false;
};

// The part of a ticket that names its process.
std::string process_of(const std::string& ticket);

// out = the sum of `x` over ranks, added in float32 as neighbours of a binary tree, the same bits
// on all. All ranks call it with the same shape and dtype, in the same order. If one does not in
// time, or after `abandon`, the result is zeros, and `peer_failure` reports it.
//
// Throws std::invalid_argument for tensors that differ, are too large or not in 16 bytes.
void peer_sum(const PeerMemory& memory, const Tensor& out, const Tensor& x);

// Copies to `out`, one int32, whether a sum of any rank has failed, in order on the stream.
void peer_failure(const PeerMemory& memory, const Tensor& out);

}  // namespace quire::cuda
