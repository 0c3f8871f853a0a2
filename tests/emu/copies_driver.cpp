// A kernel whose threads read by plain loads what each other's copies bring, stage by stage, as
// operands that are dequantised are read.
#include <cstdio>
#include <vector>

#include "cuda/launch.h"
#include "emu/copies_kernel.h"

namespace {

using namespace quire::cuda;

bool is_right(emu::Order order) {
  emu::Machine::order = order;
  std::vector<uint32_t> from(kSteps * kThreads * 4);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i * i);
  std::vector<uint32_t> sums(kThreads, 0xffffffff);
  launch(sum_kernel, 1, kThreads, kStages * kThreads * 16, nullptr, sums.data(), from.data());
  for (int thread = 0; thread < kThreads; ++thread) {
    uint32_t sum = 0;
    for (int step = 0; step < kSteps; ++step)
      for (int i = 0; i < 4; ++i)
        sum += from[(step * kThreads + (thread + kWarpSize) % kThreads) * 4 + i];
    if (sums[thread] != sum) return false;
  }
  return true;
}

}  // namespace

int main() {
  try {
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled})
      if (!is_right(order)) return 1;
  } catch (const emu::KernelError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
