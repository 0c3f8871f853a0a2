#include "cpu/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace quire::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread that waits spins before it parks. To wake one that has parked takes 50 to 100
// us, and the gaps between the kernels of a step are shorter than this; longer spinning takes
// cores from the services beside (at 100 us a cluster on two cores was a fifth slower).
constexpr auto kSpinTime = std::chrono::microseconds(20);

// Threads do not survive fork(); a child runs everything on its own thread.
std::atomic<bool> forked{false};

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns whether the condition became true while it spun.
template <typename Condition>
bool spin_until(const Condition& is_true) {
  constexpr int kPauses = 32;
  const Clock::time_point end = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (is_true()) return true;
      pause_cpu();
    }
  } while (Clock::now() < end);
  return false;
}

struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
};

// The next index of a job to take, below the job's number.
constexpr int kIndexBits = 32;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

uint64_t job_of(uint64_t ticket) {
  return ticket >> kIndexBits;
}

}  // namespace

// A job ends when its tasks have, whether or not every worker has seen it: one that is late, since
// it was parked or has lost its core, finds nothing to do. So a worker may read the fields of a job
// while the next one is posted; it takes an index only if the ticket has not changed meanwhile, and
// the ticket is closed before the fields change.
struct ThreadPool::State {
  std::vector<std::thread> threads;
  std::vector<Scratch> scratch;
  std::mutex run_mutex;  // one job at a time

  std::atomic<uint64_t> ticket{kIndexMask};  // closed: no index is below any count
  std::atomic<int64_t> count{0};
  std::atomic<Task> task{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> num_done{0};

  std::mutex mutex;
  std::condition_variable job_posted;
  std::condition_variable job_done;
  std::atomic<int> num_parked{0};
  std::atomic<bool> is_awaited{false};  // the caller of run() has parked
  std::atomic<bool> is_stopping{false};
  std::exception_ptr error;  // the first that a task threw in the current job

  // Takes indices of the current job until there are none left.
  void take_indices(int worker) {
    uint64_t seen = ticket.load(std::memory_order_acquire);
    for (;;) {
      const auto index = static_cast<int64_t>(seen & kIndexMask);
      const int64_t end = count.load(std::memory_order_relaxed);
      const Task own_task = task.load(std::memory_order_relaxed);
      void* const own_context = context.load(std::memory_order_relaxed);
      if (index >= end) return;
      std::atomic_thread_fence(std::memory_order_acquire);
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
      try {
        own_task(own_context, index, worker);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (error == nullptr) error = std::current_exception();
      }
      if (num_done.fetch_add(1) + 1 == end && is_awaited.load()) {
        std::lock_guard<std::mutex> lock(mutex);
        job_done.notify_one();
      }
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void work(int worker) {
    uint64_t seen = 0;
    const auto is_new = [&] { return job_of(ticket.load()) != seen || is_stopping.load(); };
    while (!is_stopping) {
      if (!spin_until(is_new)) {
        std::unique_lock<std::mutex> lock(mutex);
        ++num_parked;
        job_posted.wait(lock, is_new);
        --num_parked;
      }
      seen = job_of(ticket.load());
      take_indices(worker);
    }
  }

  // Only the caller of run() changes the job's number.
  void post(int64_t new_count, Task new_task, void* new_context) {
    const uint64_t job = job_of(ticket.load(std::memory_order_relaxed)) + 1;
    ticket.store(job << kIndexBits | kIndexMask, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    count.store(new_count, std::memory_order_relaxed);
    task.store(new_task, std::memory_order_relaxed);
    context.store(new_context, std::memory_order_relaxed);
    num_done.store(0, std::memory_order_relaxed);
    ticket.store((job + 1) << kIndexBits);
    wake();
  }

  void wake() {
    if (num_parked.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    job_posted.notify_all();
  }

  void await(int64_t num_tasks) {
    const auto is_done = [&] { return num_done.load() == num_tasks; };
    if (spin_until(is_done)) return;
    std::unique_lock<std::mutex> lock(mutex);
    is_awaited = true;
    job_done.wait(lock, is_done);
    is_awaited = false;
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(new State) {
  static std::once_flag at_fork;
  std::call_once(at_fork, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
  state_->scratch.resize(num_threads);
  for (int i = 1; i < num_threads; ++i) {
    state_->threads.emplace_back([this, i] { state_->work(i); });
  }
}

ThreadPool::~ThreadPool() {
  for (Scratch& scratch : state_->scratch) std::free(scratch.data);
  if (forked) {
    return;  // the threads exist in the parent only, so there is nothing to join; their handles are
             // left alone
  }
  state_->is_stopping = true;
  state_->wake();
  for (std::thread& thread : state_->threads) thread.join();
  delete state_;
}

void ThreadPool::run(int64_t count, Task task, void* context) {
  State& s = *state_;
  std::lock_guard<std::mutex> turn(s.run_mutex);
  if (count <= 1 || s.threads.empty() || forked.load(std::memory_order_relaxed)) {
    for (int64_t i = 0; i < count; ++i) task(context, i, 0);
    return;
  }
  s.post(count, task, context);
  s.take_indices(0);
  s.await(count);
  if (s.error != nullptr) std::rethrow_exception(std::exchange(s.error, nullptr));
}

void* ThreadPool::scratch(int worker, size_t bytes) {
  constexpr size_t kAlignment = 64;
  Scratch& scratch = state_->scratch[worker];
  if (scratch.bytes < bytes) {
    std::free(scratch.data);
    scratch.bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    scratch.data = std::aligned_alloc(kAlignment, scratch.bytes);
    if (scratch.data == nullptr) {
      scratch.bytes = 0;
      throw std::bad_alloc();
    }
  }
  return scratch.data;
}

int ThreadPool::num_threads() const {
  return static_cast<int>(state_->scratch.size());
}

}  // namespace quire::cpu
