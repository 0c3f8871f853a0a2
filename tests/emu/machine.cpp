#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace emu {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kSharedAlignment = 1024;
constexpr int kPoison = 0xff;  // NaN as floating point of any size

thread_local Machine* running = nullptr;
// Of the calling thread.
thread_local uint64_t num_launches = 0;
thread_local uint64_t num_blocks = 0;

size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

Order Machine::order = Order::kForward;
unsigned Machine::seed = 1;

Machine& Machine::current() {
  return *running;
}

Machine::Machine(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body)
    : grid_size_(grid),
      block_size_(block),
      body_(body),
      shared_bytes_(shared_bytes),
      shared_(static_cast<char*>(
                  aligned_alloc(kSharedAlignment, round_up(shared_bytes + 1, kSharedAlignment))),
              free),
      races_(shared_bytes,
             static_cast<int>((size_t{block.x} * block.y * block.z + kWarpSize - 1) / kWarpSize)),
      random_(seed) {
  const size_t num_threads = size_t{block.x} * block.y * block.z;
  // Kept from launch to launch: a stack costs more than most kernels.
  static thread_local std::vector<std::unique_ptr<CudaThread>> pool;
  while (pool.size() < num_threads) pool.push_back(std::make_unique<CudaThread>(kStackBytes));
  for (size_t i = 0; i < num_threads; ++i) threads_.push_back(pool[i].get());
  warps_.resize((num_threads + kWarpSize - 1) / kWarpSize);
}

void Machine::launch(dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void()>& body) {
  ++num_launches;
  num_blocks += uint64_t{grid.x} * grid.y * grid.z;
  Machine machine(grid, block, shared_bytes, body);
  Machine* outer = std::exchange(running, &machine);
  try {
    for (const uint64_t number : machine.block_numbers()) {
      const auto x = static_cast<unsigned>(number % grid.x);
      const auto y = static_cast<unsigned>(number / grid.x % grid.y);
      const auto z = static_cast<unsigned>(number / grid.x / grid.y);
      machine.run_block({x, y, z});
    }
  } catch (...) {
    running = outer;
    throw;
  }
  running = outer;
}

std::vector<uint64_t> Machine::block_numbers() {
  std::vector<uint64_t> numbers(uint64_t{grid_size_.x} * grid_size_.y * grid_size_.z);
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  if (order == Order::kReverse) std::reverse(numbers.begin(), numbers.end());
  if (order == Order::kShuffled) std::shuffle(numbers.begin(), numbers.end(), random_);
  return numbers;
}

void Machine::run_block(dim3 index) {
  block_index_ = index;
  num_live_ = static_cast<int>(threads_.size());
  num_at_barrier_ = 0;
  static_shared_.clear();
  races_.begin_block();
  for (Warp& warp : warps_) warp.arrived = 0;
  memset(shared_.get(), kPoison, shared_bytes_);
#if defined(__SANITIZE_ADDRESS__)
  const size_t allocated = round_up(shared_bytes_ + 1, kSharedAlignment);
  ASAN_POISON_MEMORY_REGION(shared_.get() + shared_bytes_, allocated - shared_bytes_);
#endif
  for (size_t i = 0; i < threads_.size(); ++i) {
    CudaThread& thread = *threads_[i];
    const unsigned number = static_cast<unsigned>(i);
    thread.number = static_cast<int>(i);
    thread.index = {number % block_size_.x, number / block_size_.x % block_size_.y,
                    number / (block_size_.x * block_size_.y)};
    thread.state = CudaThread::State::kReady;
    thread.has_begun = false;
    thread.num_collectives = 0;
    thread.passed = {};
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.has_fenced = true;
    thread.open_products.clear();
    thread.product_groups.clear();
    thread.fiber.start(
        [](void* self) {
          auto* machine = static_cast<Machine*>(self);
          machine->body_();
          if (!machine->current_->has_begun)
            machine->fail("a kernel that does not await the one before it");
          if (!machine->current_->product_groups.empty())
            machine->fail("products of a warpgroup that nothing waits for");
          machine->current_->state = CudaThread::State::kDone;
          --machine->num_live_;
          machine->release_block_barrier();  // the barrier does not wait for threads that have left
        },
        this);
  }
  take_turns();
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(shared_.get() + shared_bytes_, allocated - shared_bytes_);
#endif
  if (!error_.empty()) throw KernelError(error_);
}

void Machine::take_turns() {
  std::vector<size_t> numbers(threads_.size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  if (order == Order::kReverse) std::reverse(numbers.begin(), numbers.end());
  const size_t at_a_time = order == Order::kShuffled ? numbers.size() : kWarpSize;
  while (num_live_ > 0) {
    if (order == Order::kShuffled) std::shuffle(numbers.begin(), numbers.end(), random_);
    for (size_t i = 0; i < numbers.size(); i += at_a_time) {
      const size_t count = std::min(at_a_time, numbers.size() - i);
      while (resume_ready(&numbers[i], count) && order != Order::kShuffled) {
      }
      if (!error_.empty()) return;
    }
    const bool can_go_on = std::any_of(
        threads_.begin(), threads_.end(),
        [](const CudaThread* thread) { return thread->state == CudaThread::State::kReady; });
    if (num_live_ > 0 && !can_go_on) {
      error_ = "deadlock: " + whereabouts();
      return;
    }
  }
}

// Gives a turn to those threads that can go on; returns whether there were any.
bool Machine::resume_ready(const size_t* numbers, size_t count) {
  bool any = false;
  for (size_t i = 0; i < count && error_.empty(); ++i) {
    CudaThread* thread = threads_[numbers[i]];
    if (thread->state != CudaThread::State::kReady) continue;
    any = true;
    current_ = thread;
    thread->fiber.resume();
  }
  return any && error_.empty();
}

std::string Machine::whereabouts() const {
  int at_warp_barrier = 0;
  for (const CudaThread* thread : threads_)
    at_warp_barrier += thread->state == CudaThread::State::kAtWarpBarrier;
  return "of " + std::to_string(num_live_) + " threads of block (" +
         std::to_string(block_index_.x) + ", " + std::to_string(block_index_.y) + ", " +
         std::to_string(block_index_.z) + ") " + std::to_string(num_at_barrier_) +
         " wait at __syncthreads and " + std::to_string(at_warp_barrier) + " in a warp";
}

void Machine::fail(const std::string& message) {
  error_ = message + " (thread " + std::to_string(current_->number) + ")";
  current_->state = CudaThread::State::kDone;
  current_->fiber.yield();  // for good: an exception cannot leave a fiber's stack
  std::abort();
}

void* Machine::static_shared(const void* tag, size_t bytes) {
  std::vector<uint64_t>& memory = static_shared_[tag];
  if (memory.empty()) memory.assign((bytes + 7) / 8, ~uint64_t{0});
  return memory.data();
}

void Machine::block_barrier(const char* file, int line) {
  if (num_at_barrier_ > 0 && (line != barrier_line_ || strcmp(file, barrier_file_) != 0)) {
    fail("deadlock: threads wait at lines " + std::to_string(barrier_line_) + " and " +
         std::to_string(line));
  }
  barrier_file_ = file;
  barrier_line_ = line;
  current_->state = CudaThread::State::kAtBlockBarrier;
  ++num_at_barrier_;
  release_block_barrier();
  if (current_->state == CudaThread::State::kAtBlockBarrier) current_->fiber.yield();
}

void Machine::release_block_barrier() {
  if (num_live_ == 0 || num_at_barrier_ < num_live_) return;
  num_at_barrier_ = 0;
  for (CudaThread* thread : threads_) {
    if (thread->state != CudaThread::State::kAtBlockBarrier) continue;
    thread->state = CudaThread::State::kReady;
    ++thread->passed.of_warp;
    ++thread->passed.of_block;
  }
}

int64_t Machine::offset_of(const void* shared) const {
  const auto offset = static_cast<const char*>(shared) - shared_.get();
  return offset >= 0 && offset < static_cast<int64_t>(shared_bytes_) ? offset : -1;
}

void Machine::begin_copy(const void* shared) {
  const int64_t offset = offset_of(shared);
  if (offset < 0) return;
  const char* wrong = races_.begin_copy(offset, warp_number(), current_->passed);
  if (wrong != nullptr) fail(std::string("a race: ") + wrong);
}

void Machine::end_copy(const void* shared) {
  const int64_t offset = offset_of(shared);
  if (offset >= 0) races_.end_copy(offset, current_->passed);
}

void Machine::read_shared(const void* shared) {
  const int64_t offset = offset_of(shared);
  if (offset < 0) return;
  const char* wrong = races_.read(offset, warp_number(), current_->passed);
  if (wrong != nullptr) fail(std::string("a race: ") + wrong);
}

void Machine::require_fences() {
  for (const CudaThread* thread : threads_) {
    if (!thread->has_fenced) fail("wgmma of what was copied and not fenced");
  }
}

void Machine::warp_barrier(uint32_t mask, bool orders_memory) {
  const uint32_t bit = 1u << lane();
  if ((mask & bit) == 0) fail("a warp collective is called by a lane that its mask leaves out");
  Warp& warp = own_warp();
  warp.arrived |= bit;
  if ((warp.arrived & mask) != mask) {
    current_->state = CudaThread::State::kAtWarpBarrier;
    current_->fiber.yield();
    return;
  }
  warp.arrived &= ~mask;
  const size_t first = static_cast<size_t>(current_->number - lane());
  for (int i = 0; i < kWarpSize && first + i < threads_.size(); ++i) {
    if ((mask >> i & 1) == 0) continue;
    CudaThread& other = *threads_[first + i];
    if (other.num_collectives != current_->num_collectives)
      fail("lanes meet in a collective that have been in different ones before");
    if (other.state == CudaThread::State::kAtWarpBarrier) other.state = CudaThread::State::kReady;
    if (orders_memory) ++other.passed.of_warp;
  }
}

}  // namespace emu

// For tests in Python.
extern "C" __attribute__((visibility("default"))) uint64_t quire_emulated_launches() {
  return emu::num_launches;
}

extern "C" __attribute__((visibility("default"))) uint64_t quire_emulated_blocks() {
  return emu::num_blocks;
}
