#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
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

// A worker that finds no job spins for about 20 us (the gap between two ops of a step) and then
// parks.
constexpr int kSpins = 1000;

// Threads do not survive fork(); a child runs everything on its own thread.
std::atomic<bool> forked{false};

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
};

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> threads;
  std::vector<Scratch> scratch;
  std::mutex run_mutex;  // one job at a time

  std::mutex mutex;
  std::condition_variable job_posted;
  std::condition_variable job_done;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> unfinished{0};  // workers that have not yet left the current job
  std::atomic<int64_t> next{0};
  int64_t count = 0;
  Task task = nullptr;
  void* context = nullptr;
  bool stopping = false;

  std::exception_ptr error;  // the first that a task threw in the current job

  void take_indices(int worker) {
    try {
      for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        task(context, i, worker);
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
  }

  void work(int worker) {
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && generation.load(std::memory_order_acquire) == seen; ++i)
        pause_cpu();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex);
        job_posted.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping) return;
      take_indices(worker);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(mutex);
        job_done.notify_one();
      }
    }
  }

  void post() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      generation.fetch_add(1, std::memory_order_release);
    }
    job_posted.notify_all();
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
  state_->stopping = true;
  state_->post();
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
  s.task = task;
  s.context = context;
  s.count = count;
  s.next.store(0, std::memory_order_relaxed);
  s.unfinished.store(static_cast<int>(s.threads.size()), std::memory_order_relaxed);
  s.post();
  s.take_indices(0);
  for (int i = 0; i < kSpins && s.unfinished.load(std::memory_order_acquire) != 0; ++i) pause_cpu();
  if (s.unfinished.load(std::memory_order_acquire) != 0) {
    std::unique_lock<std::mutex> lock(s.mutex);
    s.job_done.wait(lock, [&] { return s.unfinished.load(std::memory_order_acquire) == 0; });
  }
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
