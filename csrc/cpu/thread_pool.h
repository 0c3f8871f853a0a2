// Fork-join pool: the caller and num_threads - 1 workers take indices from one counter. Which
// thread takes which index never changes what is computed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cpu {

class ThreadPool {
 public:
  using Task = void (*)(void* context, int64_t index, int worker);

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls task(context, i, worker) for every i in [0, count) and returns when all are done;
  // rethrows the first exception. Concurrent callers take turns.
  void run(int64_t count, Task task, void* context);

  // Memory for `worker` alone, 64-byte aligned, kept between runs; its former contents are lost
  // when it grows.
  void* scratch(int worker, size_t bytes);

  int num_threads() const;

 private:
  struct State;
  State* state_;
};

}  // namespace quire::cpu
