// Runs CUDA kernels on the CPU: for correctness, not for speed.
//
// Blocks run one after the other; within a block every CUDA thread is a fiber, which runs until it
// meets a barrier or a warp collective. In which order threads get their turn is a setting: a
// kernel that lacks a barrier gives a wrong result under at least one of three orders. Asynchronous
// copies land as late as they may in the first of them, at once in the second, and now so, now so
// in the third. Shared memory begins as NaNs, and a barrier that not all threads reach is reported
// as the deadlock it is.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fiber.h"
#include "shared_races.h"

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emu {

constexpr int kWarpSize = 32;
constexpr uint32_t kFullMask = 0xffffffffu;

// Warp by warp, each as far as it can go before the next one begins, from the first or from the
// last; or thread by thread at random. Blocks of a grid come in the same order, from the first,
// from the last, or at random.
enum class Order { kForward, kReverse, kShuffled };

// A kernel did what no GPU allows; the message names the act and the place.
class KernelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct AsyncCopy {
  void* destination;
  const void* source;
  size_t bytes;
  size_t valid_bytes;  // the rest becomes zero
  bool has_landed = false;

  void land() {
    if (valid_bytes > 0) memcpy(destination, source, valid_bytes);
    memset(static_cast<char*>(destination) + valid_bytes, 0, bytes - valid_bytes);
    has_landed = true;
  }
};

struct CudaThread {
  enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

  explicit CudaThread(size_t stack_bytes) : fiber(stack_bytes) {}

  Fiber fiber;
  dim3 index;
  int number = 0;
  State state = State::kDone;
  bool has_begun = false;        // has called begin_kernel
  unsigned num_collectives = 0;  // that it has begun
  Passed passed;
  std::vector<AsyncCopy> open_copies;
  std::vector<std::vector<AsyncCopy>> copy_groups;
  bool has_fenced = true;  // what its copies brought, for products of warpgroups
  std::vector<std::function<void()>> open_products;
  std::vector<std::vector<std::function<void()>>> product_groups;
};

// The values that the lanes of a warp exchange.
struct Warp {
  static constexpr size_t kSlotBytes = 128;

  uint32_t arrived = 0;
  // Used in turn: a lane may begin the next collective before others have read this one, and in
  // those of a part of the warp a few more.
  static constexpr unsigned kSets = 8;
  alignas(16) char slots[kSets][kWarpSize][kSlotBytes];
};

class Machine {
 public:
  // Runs a kernel on a grid of blocks.
  //
  // Throws KernelError: a deadlock, a misaligned access, a collective that a lane must not join.
  static void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

  static Order order;    // of turns, in launches from now on
  static unsigned seed;  // of kShuffled

  // The machine that runs the calling CUDA thread.
  static Machine& current();

  const dim3& thread_index() const { return current_->index; }
  const dim3& block_index() const { return block_index_; }
  const dim3& block_size() const { return block_size_; }
  const dim3& grid_size() const { return grid_size_; }
  int lane() const { return current_->number % kWarpSize; }
  CudaThread& thread() { return *current_; }

  char* dynamic_shared() { return shared_.get(); }

  // Memory that all threads of the block name by the same tag.
  void* static_shared(const void* tag, size_t bytes);

  // Waits for all threads of the block, at one place in the program.
  void block_barrier(const char* file, int line);

  // Waits for the lanes of `mask`, of which the caller must be one. Memory is ordered by
  // __syncwarp, not by other collectives.
  void warp_barrier(uint32_t mask, bool orders_memory = false);

  // Whether the copy that begins now lands before the thread goes on.
  bool lands_at_once() {
    return order == Order::kReverse || (order == Order::kShuffled && random_() % 2 == 0);
  }

  // The thread begins a copy to shared memory, has waited for it, or reads 16 bytes of it.
  void begin_copy(const void* shared);
  void end_copy(const void* shared);
  void read_shared(const void* shared);

  // A product of a warpgroup begins: all threads must have fenced what their copies brought.
  void require_fences();

  // Shows a value to the lanes of `mask` and returns what each of them shows.
  template <typename T>
  const char (*exchange(uint32_t mask, const T& value)) [Warp::kSlotBytes] {
    static_assert(sizeof(T) <= Warp::kSlotBytes, "too large for a collective");
    CudaThread& me = *current_;
    const unsigned set = me.num_collectives++ % Warp::kSets;
    Warp& warp = own_warp();
    memcpy(warp.slots[set][lane()], &value, sizeof(T));
    warp_barrier(mask);
    return warp.slots[set];
  }

  // Ends the launch with a KernelError.
  [[noreturn]] void fail(const std::string& message);

 private:
  Machine(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

  std::vector<uint64_t> block_numbers();
  void run_block(dim3 index);
  void take_turns();
  bool resume_ready(const size_t* numbers, size_t count);
  void release_block_barrier();
  int warp_number() const { return current_->number / kWarpSize; }
  Warp& own_warp() { return warps_[warp_number()]; }
  // The offset of an address in dynamic shared memory, or -1.
  int64_t offset_of(const void* shared) const;
  std::string whereabouts() const;

  dim3 grid_size_;
  dim3 block_size_;
  dim3 block_index_;
  const std::function<void()>& body_;
  size_t shared_bytes_;
  std::unique_ptr<char[], void (*)(void*)> shared_;
  SharedRaces races_;
  std::map<const void*, std::vector<uint64_t>> static_shared_;
  std::vector<CudaThread*> threads_;
  std::vector<Warp> warps_;
  CudaThread* current_ = nullptr;
  int num_live_ = 0;
  int num_at_barrier_ = 0;
  const char* barrier_file_ = nullptr;
  int barrier_line_ = 0;
  std::string error_;
  std::mt19937 random_;
};

template <typename T>
T shown(const char (*slots)[Warp::kSlotBytes], int lane) {
  T value;
  memcpy(&value, slots[lane], sizeof(T));
  return value;
}

template <typename T>
T* static_shared(const void* tag, size_t count) {
  return static_cast<T*>(Machine::current().static_shared(tag, count * sizeof(T)));
}

}  // namespace emu
