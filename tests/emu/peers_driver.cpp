// Holds the sum over ranks in memory of peers against the tree of its definition, bit by bit, in
// the emulator, with ranks as threads that are late at random; then leaves a rank alone. Mutants of
// the kernel are compiled with this (test_peers_mutants.py): exits with 0 if all is well, 1 if not,
// 2 if the kernel did what no GPU allows.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/peers/peer_sum.cu"

// Streams are those of the emulator, which has none.
cudaStream_t quire::cuda::current_stream() {
  return nullptr;
}

namespace {

using namespace quire;
using namespace quire::cuda;
using std::chrono::milliseconds;

constexpr int kGuard = 8;  // elements behind a result that stay as they are
constexpr float kUntouched = 7.f;

template <typename T>
Tensor tensor_of(std::vector<T>& values, DType dtype, int64_t count) {
  return {values.data(), dtype, Device::kCuda, 1, {count}, {1}};
}

std::vector<std::unique_ptr<PeerMemory>> group(int size, double timeout_s) {
  std::vector<std::unique_ptr<PeerMemory>> memories;
  std::vector<std::string> tickets;
  for (int rank = 0; rank < size; ++rank) {
    memories.push_back(std::make_unique<PeerMemory>(rank, size, timeout_s));
    tickets.push_back(memories.back()->ticket());
  }
  for (auto& each : memories)
    if (!each->open(tickets).empty()) throw std::runtime_error("the group does not open");
  return memories;
}

void free_all(std::vector<std::unique_ptr<PeerMemory>>& memories) {
  for (auto& each : memories) each->close();
  for (auto& each : memories) each->free();
}

bool has_failed(const PeerMemory& memory) {
  std::vector<int32_t> failed{-1};
  peer_failure(memory, tensor_of(failed, DType::kInt32, 1));
  return failed[0] == 1;
}

// What has been called before: numbers are about to wrap around.
void set_calls(const std::vector<std::unique_ptr<PeerMemory>>& memories, uint32_t calls) {
  for (const auto& each : memories) {
    const PeerView& view = each->view();
    auto* flags = reinterpret_cast<uint32_t*>(view.of_rank[view.rank] + kPeerFlagsOffset);
    for (int i = 0; i < kPeerBlocks; ++i) view.calls[i] = calls;
    for (int i = 0; i < kPeerBlocks * kMaxPeers; ++i) flags[i] = calls;
  }
}

template <typename T>
std::vector<T> summand(int rank, int call, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(100 * call + rank));
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& each : values) each = from_float<T>(normal(random) * (rank % 3 == 1 ? 300.f : 1.f));
  return values;
}

template <typename T>
T tree(const std::vector<std::vector<T>>& parts, size_t i) {
  std::vector<float> sums;
  for (const auto& each : parts) sums.push_back(to_float(each[i]));
  while (sums.size() > 1) {
    std::vector<float> halves;
    for (size_t k = 0; k < sums.size(); k += 2) halves.push_back(sums[k] + sums[k + 1]);
    sums = halves;
  }
  return from_float<T>(sums[0]);
}

// Elements of calls in turn: of three blocks, of one in part, of two.
constexpr int64_t kPacks[] = {1200, 3, 1000};

template <typename T>
int compare(DType dtype, int size, int num_calls, uint32_t calls_before) {
  auto memories = group(size, 20);
  set_calls(memories, calls_before);
  std::vector<int> results(static_cast<size_t>(size));
  const auto run_rank = [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int call = 0; call < num_calls; ++call) {
      const int64_t count = kPacks[call % 3] * Pack<T>::kSize;
      std::vector<std::vector<T>> parts;
      for (int other = 0; other < size; ++other) parts.push_back(summand<T>(other, call, count));
      std::vector<T> out(static_cast<size_t>(count) + kGuard, from_float<T>(kUntouched));
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
      auto& own = parts[static_cast<size_t>(rank)];
      try {
        peer_sum(*memories[static_cast<size_t>(rank)], tensor_of(out, dtype, count),
                 tensor_of(own, dtype, count));
      } catch (const emu::KernelError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
      }
      for (size_t i = 0; i < out.size(); ++i) {
        const T expected =
            i < static_cast<size_t>(count) ? tree(parts, i) : from_float<T>(kUntouched);
        if (memcmp(&out[i], &expected, sizeof expected) == 0) continue;
        std::fprintf(stderr, "differs: %d ranks, rank %d, call %d, element %zu\n", size, rank, call,
                     i);
        return 1;
      }
    }
    return has_failed(*memories[static_cast<size_t>(rank)]) ? 1 : 0;
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      results[static_cast<size_t>(rank)] = run_rank(rank);
      // Others would wait for a rank that has found something wrong.
      if (results[static_cast<size_t>(rank)] != 0)
        for (auto& each : memories) each->abandon();
    });
  }
  for (std::thread& each : threads) each.join();
  free_all(memories);
  for (const int each : results)
    if (each != 0) return each;
  return 0;
}

// A rank whose others never come: whether calls give zeros, report it, and take less than a time.
bool ends(double timeout_s, bool is_abandoned, milliseconds limit) {
  auto memories = group(2, timeout_s);
  std::vector<float> x(1024, 1.f), out(1024, kUntouched);
  const auto begun = std::chrono::steady_clock::now();
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    // One that waits for ever would not end.
    while (!is_abandoned && !is_over && std::chrono::steady_clock::now() - begun < 2 * limit)
      std::this_thread::sleep_for(milliseconds(5));
    memories[0]->abandon();
  });
  bool is_well = true;
  for (int call = 0; call < 5; ++call) {
    peer_sum(*memories[0], tensor_of(out, DType::kFloat32, 1024),
             tensor_of(x, DType::kFloat32, 1024));
    for (const float each : out) is_well &= each == 0.f;
    out.assign(out.size(), kUntouched);
  }
  is_well &= std::chrono::steady_clock::now() - begun < limit;
  is_over = true;
  other.join();
  is_well &= has_failed(*memories[0]) && has_failed(*memories[1]);
  free_all(memories);
  if (!is_well) std::fprintf(stderr, "a rank that is alone, abandoned: %d\n", is_abandoned);
  return is_well;
}

// Two ranks of four, of which one is abandoned: whether the other learns of it while it waits.
bool is_reported(milliseconds limit) {
  auto memories = group(4, 25);
  const auto begun = std::chrono::steady_clock::now();
  const auto run = [&](size_t rank) {
    std::vector<float> x(8, 1.f), out(8, kUntouched);
    peer_sum(*memories[rank], tensor_of(out, DType::kFloat32, 8), tensor_of(x, DType::kFloat32, 8));
  };
  std::thread first([&] { run(0); });
  std::thread second([&] { run(1); });
  std::this_thread::sleep_for(milliseconds(20));
  memories[0]->abandon();
  first.join();
  second.join();
  const bool is_well = std::chrono::steady_clock::now() - begun < limit;
  free_all(memories);
  if (!is_well) std::fprintf(stderr, "a rank that waits for one that is left\n");
  return is_well;
}

}  // namespace

int main() {
  int result = 0;
  for (const emu::Order order :
       {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
    emu::Machine::order = order;
    if (result == 0) result = compare<bf16>(DType::kBFloat16, 2, 60, 0);
    if (result == 0) result = compare<float>(DType::kFloat32, 4, 12, 0xfffffffa);
    if (result == 0) result = compare<f16>(DType::kFloat16, 8, 6, 0);
  }
  if (result != 0) return result;
  emu::Machine::order = emu::Order::kForward;
  // Others may want the cores as well.
  const bool all_end = ends(25, true, milliseconds(10000)) && ends(2, false, milliseconds(8000));
  return all_end && is_reported(milliseconds(10000)) ? 0 : 1;
}
