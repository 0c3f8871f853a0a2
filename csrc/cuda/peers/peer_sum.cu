// The sum over ranks in one kernel. A block writes its piece of this rank's summand where the
// others see it, sets its flag in the memory of each, waits for theirs, and adds up what all blocks
// of its number have written.
//
// Why two halves are enough, and nothing is awaited at the end: in its call n + 2 a block
// overwrites what it wrote in call n. Before that the call n + 1 of this rank has ended, for which
// it has seen the flags of n + 1 of all others. A rank sets those in a launch that begins when its
// call n is over, in which it has read that piece. So flags are at most one call ahead, too.
#include "core/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/peers/peer_memory.h"
#include "cuda/ptx.h"
#include "cuda/vector.h"

namespace quire::cuda {
namespace {

// Looks at what lies beyond the bus, and at the clock, once in so many looks at a flag.
constexpr uint32_t kLooks = 128;

__device__ __forceinline__ uint32_t* flag_of(char* memory, int rank) {
  auto* flags = reinterpret_cast<uint32_t*>(memory + kPeerFlagsOffset);
  return flags + blockIdx.x * kMaxPeers + rank;
}

__device__ __forceinline__ uint32_t* failed_of(char* memory) {
  return reinterpret_cast<uint32_t*>(memory + kPeerFailedOffset);
}

// Waits until a rank has come to a call. Returns whether it has in time.
__device__ __forceinline__ bool await_peer(const PeerView& peers, const uint32_t* flag,
                                           uint32_t call) {
  const uint64_t begun = ptx::nanoseconds();
  for (uint32_t look = 1;; ++look) {
    // It may be one call ahead; numbers wrap around.
    if (static_cast<int32_t>(ptx::load_acquire(flag) - call) >= 0) return true;
    if (look % kLooks != 0) continue;
    if (ptx::load_relaxed(peers.abandoned) != 0) return false;
    if (ptx::load_relaxed(failed_of(peers.of_rank[peers.rank])) != 0) return false;
    if (ptx::nanoseconds() - begun > peers.timeout_ns) return false;
  }
}

// `peers` stays where the launch has put it: a copy that is indexed would lie in local memory.
template <typename T, int kRanks>
__global__ void __launch_bounds__(kPeerThreads, kPeerBlocksOfMultiprocessor)
    peer_sum_kernel(const __grid_constant__ PeerView peers, T* out, const T* x, int64_t num_packs) {
  begin_kernel();
  constexpr int kSize = Pack<T>::kSize;
  QUIRE_SHARED(uint32_t, has_failed, 1);
  const int64_t pack = int64_t{blockIdx.x} * kPeerThreads + threadIdx.x;
  const bool has_pack = pack < num_packs;
  const uint32_t call = peers.calls[blockIdx.x] + 1;
  const int64_t place = call % 2 * kPeerHalfBytes + pack * 16;
  uint4 own{};
  if (has_pack) {
    own = reinterpret_cast<const uint4*>(x)[pack];
    *reinterpret_cast<uint4*>(peers.of_rank[peers.rank] + place) = own;
  }
  __syncthreads();  // the piece is written
  if (threadIdx.x < kWarpSize) {
    const auto other = static_cast<int>(threadIdx.x);
    const bool is_other = other < kRanks && other != peers.rank;
    // After a failure no call is awaited, and the others cannot go on either.
    char* const own_memory = peers.of_rank[peers.rank];
    const bool meets = is_other && ptx::load_relaxed(failed_of(own_memory)) == 0;
    if (meets) ptx::store_release(flag_of(peers.of_rank[other], peers.rank), call);
    __syncwarp();  // all flags are set before one is awaited
    const uint32_t* own_flag = flag_of(own_memory, other);
    const bool fails = is_other && !(meets && await_peer(peers, own_flag, call));
    const bool any_fails = __any_sync(kFullMask, fails) != 0;
    if (threadIdx.x == 0) has_failed[0] = any_fails;
    // Before anything that follows from the zeros can reach the others.
    if (other < kRanks && any_fails) ptx::store_release(failed_of(peers.of_rank[other]), 1);
  }
  __syncthreads();  // those of the others are
  if (has_failed[0] != 0) {
    // The step is lost; what follows in it computes with numbers.
    if (has_pack) reinterpret_cast<uint4*>(out)[pack] = uint4{};
    return;
  }
  if (threadIdx.x == 0) peers.calls[blockIdx.x] = call;
  if (!has_pack) return;

  uint4 summands[kRanks];
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto* from = reinterpret_cast<const uint4*>(peers.of_rank[rank] + place);
    summands[rank] = rank == peers.rank ? own : __ldcg(from);
  }
  T sums[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    float sum[kRanks];
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      T values[kSize];
      memcpy(values, &summands[rank], sizeof values);
      sum[rank] = to_float(values[i]);
    }
#pragma unroll
    for (int distance = 1; distance < kRanks; distance *= 2) {
#pragma unroll
      for (int rank = 0; rank < kRanks; rank += 2 * distance) sum[rank] += sum[rank + distance];
    }
    sums[i] = from_float<T>(sum[0]);
  }
  uint4 result;
  memcpy(&result, sums, sizeof result);
  reinterpret_cast<uint4*>(out)[pack] = result;
}

template <typename T>
void launch_sum(const PeerView& view, const Tensor& out, const Tensor& x, int64_t num_packs) {
  auto* const kernel = view.size == 2   ? peer_sum_kernel<T, 2>
                       : view.size == 4 ? peer_sum_kernel<T, 4>
                                        : peer_sum_kernel<T, 8>;
  // At most kPeerBlocks, which run at once: one that waits keeps its place, and the one that it
  // waits for must find its own.
  const unsigned blocks = grid_size((num_packs + kPeerThreads - 1) / kPeerThreads);
  launch(kernel, blocks, kPeerThreads, 0, current_stream(), view, static_cast<T*>(out.data),
         static_cast<const T*>(x.data), num_packs);
}

}  // namespace

void peer_sum(const PeerMemory& memory, const Tensor& out, const Tensor& x) {
  check_activation_dtype("x", x);
  check_contiguous("x", x);
#if defined(__CUDACC__)  // the emulator's memory is the host's
  check_device("x", x, Device::kCuda);
#endif
  check_dtype("out", out, x.dtype);
  check_contiguous("out", out);
  check_device("out", out, x.device);
  int64_t bytes = element_size(x.dtype);
  for (int i = 0; i < x.ndim; ++i) bytes *= x.shape[i];
  if (shape_text(out) != shape_text(x))
    fail("out: must have the shape of x, " + shape_text(x) + ", got " + shape_text(out));
  const auto addresses =
      reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(out.data);
  if (bytes % 16 != 0 || addresses % 16 != 0)
    fail("x: must have a multiple of 16 bytes at a multiple of 16, got " + std::to_string(bytes));
  if (bytes > memory.max_bytes()) {
    fail("x: must have at most " + std::to_string(memory.max_bytes()) + " bytes, got " +
         std::to_string(bytes));
  }
  const PeerView& view = memory.view();
  switch (x.dtype) {
    case DType::kFloat32:
      return launch_sum<float>(view, out, x, bytes / 16);
    case DType::kBFloat16:
      return launch_sum<bf16>(view, out, x, bytes / 16);
    default:
      return launch_sum<f16>(view, out, x, bytes / 16);
  }
}

void peer_failure(const PeerMemory& memory, const Tensor& out) {
  check_shape("out", out, {1}, "[1]");
  check_dtype("out", out, DType::kInt32);
  const PeerView& view = memory.view();
  check(cudaMemcpyAsync(out.data, view.of_rank[view.rank] + kPeerFailedOffset, sizeof(uint32_t),
                        cudaMemcpyDefault, current_stream()),
        "peer memory");
}

}  // namespace quire::cuda
