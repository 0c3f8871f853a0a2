// csrc/cuda/warpgroup.h without a GPU: the same functions, by the definition of each instruction.
#pragma once

#include "cuda/device.h"
#include "machine.h"

namespace quire::cuda::ptx {

inline void fence_for_products() {
  emu::Machine::current().thread().has_fenced = true;
}

inline void begin_products() {}

template <int kTiles>
void hold_sums(float (&)[kTiles][4]) {}

inline void commit_products() {
  auto& thread = emu::Machine::current().thread();
  thread.product_groups.push_back(std::move(thread.open_products));
  thread.open_products.clear();
}

template <int kGroups>
void wait_for_products() {
  auto& groups = emu::Machine::current().thread().product_groups;
  while (groups.size() > kGroups) {
    for (auto& product : groups.front()) product();
    groups.erase(groups.begin());
  }
}

inline uint64_t describe_rows(const char* begin) {
  return reinterpret_cast<uintptr_t>(begin);
}

// The place of 16 bytes of a matrix: chunks change places by the address.
inline const char* chunk_of(uint64_t matrix, int row, int chunk) {
  const uint64_t address = matrix + static_cast<uint64_t>(row * 128 + chunk * 16);
  return reinterpret_cast<const char*>(address ^ (address >> 7 & 7) << 4);
}

template <typename T>
void load_row(float (&values)[16], uint64_t matrix, int row) {
  for (int k = 0; k < 16; ++k) {
    uint16_t bits;
    memcpy(&bits, chunk_of(matrix, row, k / 8) + k % 8 * 2, sizeof bits);
    values[k] = to_float(T{bits});
  }
}

// Reads its operands when it begins, or as late as when it is waited for.
template <typename T, int kColumnTiles>
struct WarpgroupProduct {
  static void begin(float (&c)[kColumnTiles][4], uint64_t a, uint64_t b) {
    auto& machine = emu::Machine::current();
    machine.warp_barrier(emu::kFullMask);
    for (const uint64_t matrix : {a, b})
      if (matrix % 1024 >= 128) machine.fail("wgmma of rows that begin at no multiple of 1,024");
    machine.require_fences();
    mark(a, b);
    auto& thread = machine.thread();
    thread.open_products.push_back([&c, a, b, is_done = false]() mutable {
      mark(a, b);
      if (!is_done) multiply(c, a, b);
      is_done = true;
    });
    if (!machine.lands_at_once()) return;
    // Those before it come first.
    for (auto& group : thread.product_groups)
      for (auto& product : group) product();
    for (auto& product : thread.open_products) product();
  }

 private:
  static int first_row() {
    return emu::Machine::current().thread().number / emu::kWarpSize % 4 * 16;
  }

  // The warp reads its rows of a, and all of b.
  static void mark(uint64_t a, uint64_t b) {
    auto& machine = emu::Machine::current();
    const int lane = machine.lane();
    machine.read_shared(chunk_of(a, first_row() + lane / 2, lane % 2));
    for (int i = lane; i < kColumnTiles * 16; i += emu::kWarpSize)
      machine.read_shared(chunk_of(b, i / 2, i % 2));
  }

  static void multiply(float (&c)[kColumnTiles][4], uint64_t a, uint64_t b) {
    const int lane = emu::Machine::current().lane();
    float x[2][16];
    for (int i = 0; i < 2; ++i) load_row<T>(x[i], a, first_row() + lane / 4 + i * 8);
    for (int g = 0; g < kColumnTiles; ++g) {
      for (int j = 0; j < 2; ++j) {
        float y[16];
        load_row<T>(y, b, g * 8 + lane % 4 * 2 + j);
        for (int i = 0; i < 2; ++i)
          for (int k = 0; k < 16; ++k) c[g][i * 2 + j] += x[i][k] * y[k];
      }
    }
  }
};

}  // namespace quire::cuda::ptx
