// csrc/cuda/ptx.h without a GPU: the same functions, by the definition of each instruction.
#pragma once

#include <chrono>
#include <thread>

#include "cuda/e4m3.h"
#include "machine.h"

namespace quire::cuda::ptx {

inline void forget(int&) {}
inline void forget(const char*&) {}

// Lands at once or with the wait that cannot do without it: a kernel that reads early reads what
// was there, and one that copies early takes away what others read.
inline void async_copy_16(void* shared, const void* global, bool is_valid) {
  auto& machine = emu::Machine::current();
  const auto address =
      reinterpret_cast<uintptr_t>(shared) | (is_valid ? reinterpret_cast<uintptr_t>(global) : 0);
  if (address % 16 != 0) machine.fail("cp.async of a misaligned address");
  machine.begin_copy(shared);
  emu::AsyncCopy copy{shared, global, 16, size_t{is_valid ? 16u : 0u}};
  if (machine.lands_at_once()) copy.land();
  machine.thread().open_copies.push_back(copy);
}

inline void async_commit() {
  auto& thread = emu::Machine::current().thread();
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

template <int kGroups>
void async_wait() {
  auto& machine = emu::Machine::current();
  auto& groups = machine.thread().copy_groups;
  while (groups.size() > kGroups) {
    for (emu::AsyncCopy& copy : groups.front()) {
      if (!copy.has_landed) copy.land();
      machine.end_copy(copy.destination);
      machine.thread().has_fenced = false;
    }
    groups.erase(groups.begin());
  }
}

template <bool kTransposed>
void load_four(uint32_t (&r)[4], const void* row) {
  auto& machine = emu::Machine::current();
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) machine.fail("ldmatrix of a misaligned address");
  const auto* rows = machine.exchange(emu::kFullMask, row);
  machine.read_shared(row);
  const int lane = machine.lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int along = lane % 4 * 2 + i;
      const int source_row = kTransposed ? along : lane / 4;
      const int column = kTransposed ? lane / 4 : along;
      const void* address = emu::shown<const void*>(rows, matrix * 8 + source_row);
      memcpy(&pair[i], static_cast<const uint16_t*>(address) + column, sizeof pair[i]);
    }
    memcpy(&r[matrix], pair, sizeof r[matrix]);
  }
  machine.warp_barrier(emu::kFullMask);  // as one instruction: all have read when it is over
}

inline void load_matrices(uint32_t (&r)[4], const void* row) {
  load_four<false>(r, row);
}

inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  load_four<true>(r, row);
}

inline uint32_t transpose(uint32_t pair) {
  auto& machine = emu::Machine::current();
  const auto* pairs = machine.exchange(emu::kFullMask, pair);
  const int lane = machine.lane();
  uint32_t result = 0;
  for (int i = 0; i < 2; ++i) {
    const int row = lane % 4 * 2 + i;
    const int column = lane / 4;
    const auto source = emu::shown<uint32_t>(pairs, row * 4 + column / 2);
    result |= (column % 2 != 0 ? source >> 16 : source & 0xffff) << 16 * i;
  }
  return result;
}

template <typename T>
float half_of(uint32_t pair, int which) {
  return to_float(T{static_cast<uint16_t>(pair >> 16 * which)});
}

struct Operands {
  uint32_t a[4];
  uint32_t b[2];
};

template <typename T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  auto& machine = emu::Machine::current();
  const auto* shown =
      machine.exchange(emu::kFullMask, Operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int lane = machine.lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = lane % 4 * 2 + i % 2;
    float sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const auto x = emu::shown<Operands>(shown, row % 8 * 4 + k % 8 / 2);
      const auto y = emu::shown<Operands>(shown, column * 4 + k % 8 / 2);
      sum += half_of<T>(x.a[row / 8 + k / 8 * 2], k % 2) * half_of<T>(y.b[k / 8], k % 2);
    }
    c[i] = sum;
  }
}

inline void multiply_add(int32_t* c, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  auto& machine = emu::Machine::current();
  const auto* shown =
      machine.exchange(emu::kFullMask, Operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int lane = machine.lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 32; ++k) {
      const auto x = emu::shown<Operands>(shown, row % 8 * 4 + k % 16 / 4);
      const auto y = emu::shown<Operands>(shown, column * 4 + k % 16 / 4);
      c[i] += static_cast<int8_t>(x.a[row / 8 + k / 16 * 2] >> 8 * (k % 4)) *
              static_cast<int8_t>(y.b[k / 16] >> 8 * (k % 4));
    }
  }
}

inline void widen_e4m3(uint32_t four, uint32_t& low, uint32_t& high) {
  low = widen_e4m3_pair(four & 0xffff);
  high = widen_e4m3_pair(four >> 16);
}

inline e4m3 round_to_e4m3(float x) {
  return nearest_e4m3(x);
}

inline float exp2(float x) {
  return std::exp2(x);
}

// Words that other processes and threads write: another rank's kernel runs in one.
inline void store_release(uint32_t* word, uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

// What looks for a value in vain leaves the core to those who write it.
inline uint32_t load_acquire(const uint32_t* word) {
  std::this_thread::yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

inline uint32_t load_relaxed(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

inline uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

}  // namespace quire::cuda::ptx
