// A kernel of copies_driver.cpp: a pipeline of stages, each read by another warp than filled it.
#pragma once

#include "cuda/ptx.h"

namespace quire::cuda {

constexpr int kThreads = 128;
constexpr int kStages = 3;
constexpr int kSteps = 8;

// sums[thread]: of the four numbers a step that the thread a warp further on copies.
__global__ void sum_kernel(uint32_t* sums, const uint32_t* from) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const auto copy = [&](int step) {
    if (step < kSteps) {
      ptx::async_copy_16(shared + (step % kStages * kThreads + thread) * 16,
                         from + (step * kThreads + thread) * 4, true);
    }
    ptx::async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  uint32_t sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    ptx::async_wait<kStages - 2>();
    __syncthreads();  // the step is there, and all are done with the one before it
    copy(step + kStages - 1);
    const int other = (thread + kWarpSize) % kThreads;
    const auto* four =
        reinterpret_cast<const uint32_t*>(shared + (step % kStages * kThreads + other) * 16);
    for (int i = 0; i < 4; ++i) sum += four[i];
  }
  sums[thread] = sum;
}

}  // namespace quire::cuda
