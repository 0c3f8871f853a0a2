// Loops over the thread pool for kernels whose unit of work is a row. Every task runs in the
// floating-point environment of flush_denormals.h, on whatever thread.
#pragma once

#include "cpu/kernels/element.h"
#include "cpu/kernels/flush_denormals.h"
#include "cpu/thread_pool.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// Calls body(i, worker) for i in [0, count).
template <typename Body>
void parallel_for(ThreadPool& pool, int64_t count, const Body& body) {
  pool.run(
      count,
      [](void* context, int64_t i, int worker) {
        const FlushDenormals environment;
        (*static_cast<const Body*>(context))(i, worker);
      },
      const_cast<Body*>(&body));
}

// Calls body(begin, end) over chunks of [0, rows). Work that is too little for a second
// thread stays on the calling one.
template <typename Body>
void parallel_rows(ThreadPool& pool, int64_t rows, int64_t bytes_per_row, const Body& body) {
  constexpr int64_t kSerialBytes = 64 << 10;
  constexpr int64_t kChunksPerThread = 4;
  if (rows * bytes_per_row <= kSerialBytes || pool.num_threads() == 1) {
    const FlushDenormals environment;
    body(int64_t{0}, rows);
    return;
  }
  const int64_t chunks = min_of(rows, pool.num_threads() * kChunksPerThread);
  parallel_for(pool, chunks,
               [&](int64_t i, int) { body(rows * i / chunks, rows * (i + 1) / chunks); });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
