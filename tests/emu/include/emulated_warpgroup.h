// csrc/cuda/warpgroup.h without a GPU: the same functions, by the definition of each instruction.
#pragma once

#include <array>

#include "cuda/device.h"
#include "machine.h"

namespace quire::cuda::ptx {

inline void meet_block() {
  emu::Machine::current().block_barrier("meet_block", 0);
}

template <int kRegisters>
void give_registers() {
  static_assert(kRegisters >= 24 && kRegisters % 8 == 0, "setmaxnreg");
}

template <int kRegisters>
void take_registers() {
  static_assert(kRegisters <= 256 && kRegisters % 8 == 0, "setmaxnreg");
}

inline void fence_for_products() {
  emu::Machine::current().thread().has_fenced = true;
}

inline void begin_products() {}

template <int kTiles>
void hold_sums(float (&)[kTiles][4]) {}

inline void hold_operand(uint32_t (&)[4]) {}

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

inline uint64_t matrix_behind(uint64_t matrix, int bytes) {
  return matrix + static_cast<uint64_t>(bytes);
}

// How far apart pieces lie is above the address.
constexpr int kAddressBits = 48;

inline uint64_t describe_columns(const char* begin, int piece_bytes) {
  return describe_rows(begin) | static_cast<uint64_t>(piece_bytes / 1024) << kAddressBits;
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

// The first of the warp's 16 rows of a product.
inline int first_row_of_warp() {
  return emu::Machine::current().thread().number / emu::kWarpSize % 4 * 16;
}

// The warp reads all of b, rows of 16 elements or columns of as many.
inline void mark_rows(uint64_t b, int columns) {
  auto& machine = emu::Machine::current();
  for (int i = machine.lane(); i < columns * 2; i += emu::kWarpSize)
    machine.read_shared(chunk_of(b, i / 2, i % 2));
}

inline uint64_t piece_of(uint64_t b, int column) {
  const uint64_t address = b & ((uint64_t{1} << kAddressBits) - 1);
  return address + (b >> kAddressBits) * 1024 * static_cast<uint64_t>(column / 64);
}

inline void mark_columns(uint64_t b, int columns) {
  auto& machine = emu::Machine::current();
  const int chunks = columns / 8;
  for (int i = machine.lane(); i < chunks * 16; i += emu::kWarpSize) {
    const int column = i % chunks * 8;
    machine.read_shared(chunk_of(piece_of(b, column), i / chunks, column % 64 / 8));
  }
}

inline void require_matrix(uint64_t matrix) {
  auto& machine = emu::Machine::current();
  if (matrix % 1024 >= 128) machine.fail("wgmma of rows that begin at no multiple of 1,024");
}

// Begins a product, which reads its operands at once, or as late as when it is waited for: `mark`
// notes that it does, and `multiply` does it once.
template <typename Mark, typename Multiply>
void begin_product(const Mark& mark, const Multiply& multiply) {
  auto& machine = emu::Machine::current();
  machine.require_fences();
  mark();
  auto& thread = machine.thread();
  thread.open_products.push_back([mark, multiply, is_done = false]() mutable {
    mark();
    if (!is_done) multiply();
    is_done = true;
  });
  if (!machine.lands_at_once()) return;
  // Those before it come first.
  for (auto& group : thread.product_groups)
    for (auto& product : group) product();
  for (auto& product : thread.open_products) product();
}

template <typename T, int kColumnTiles>
struct WarpgroupProduct {
  static void begin(float (&c)[kColumnTiles][4], uint64_t a, uint64_t b) {
    emu::Machine::current().warp_barrier(emu::kFullMask);
    require_matrix(a);
    require_matrix(b);
    begin_product([a, b] { mark(a, b); }, [&c, a, b] { multiply(c, a, b); });
  }

 private:
  // The warp reads its rows of a, and all of b.
  static void mark(uint64_t a, uint64_t b) {
    auto& machine = emu::Machine::current();
    const int lane = machine.lane();
    machine.read_shared(chunk_of(a, first_row_of_warp() + lane / 2, lane % 2));
    mark_rows(b, kColumnTiles * 8);
  }

  static void multiply(float (&c)[kColumnTiles][4], uint64_t a, uint64_t b) {
    const int lane = emu::Machine::current().lane();
    float x[2][16];
    for (int i = 0; i < 2; ++i) load_row<T>(x[i], a, first_row_of_warp() + lane / 4 + i * 8);
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

// A second operand by columns: its number k of a column.
struct ByColumns {
  static void mark(uint64_t b, int columns) { mark_columns(b, columns); }
  static void require(uint64_t b) { require_matrix(piece_of(b, 0)); }
  static const char* place(uint64_t b, int column, int k) {
    return chunk_of(piece_of(b, column), k, column % 64 / 8) + column % 8 * 2;
  }
};

// By rows.
struct ByRows {
  static void mark(uint64_t b, int columns) { mark_rows(b, columns); }
  static void require(uint64_t b) { require_matrix(b); }
  static const char* place(uint64_t b, int column, int k) {
    return chunk_of(b, column, k / 8) + k % 8 * 2;
  }
};

// The operand in registers must be the same from where the product begins to the wait for it.
template <typename T, int kColumnTiles, typename Operand>
struct ProductOfRegisters {
  static void begin(float (&c)[kColumnTiles][4], const uint32_t (&a)[4], uint64_t b) {
    auto& machine = emu::Machine::current();
    const Rows rows = rows_of(a);
    Operand::require(b);
    const uint32_t* held = a;
    begin_product([b] { Operand::mark(b, kColumnTiles * 8); },
                  [&c, rows, b] { multiply(c, rows, b); });
    machine.thread().open_products.push_back([held, own = std::array{a[0], a[1], a[2], a[3]}] {
      if (memcmp(held, own.data(), sizeof own) != 0)
        emu::Machine::current().fail("registers change of which a product is under way");
    });
  }

 private:
  struct Rows {
    float x[2][16];  // lane / 4 and the eighth behind it
  };
  struct Shown {
    uint32_t a[4];
  };

  static Rows rows_of(const uint32_t (&a)[4]) {
    auto& machine = emu::Machine::current();
    const auto* shown = machine.exchange(emu::kFullMask, Shown{{a[0], a[1], a[2], a[3]}});
    Rows rows;
    for (int k = 0; k < 16; ++k) {
      const auto of_lane = emu::shown<Shown>(shown, machine.lane() / 4 * 4 + k % 8 / 2);
      for (int i = 0; i < 2; ++i) {
        const auto bits = static_cast<uint16_t>(of_lane.a[i + k / 8 * 2] >> 16 * (k % 2));
        rows.x[i][k] = to_float(T{bits});
      }
    }
    return rows;
  }

  static void multiply(float (&c)[kColumnTiles][4], const Rows& rows, uint64_t b) {
    const int lane = emu::Machine::current().lane();
    for (int g = 0; g < kColumnTiles; ++g) {
      for (int j = 0; j < 2; ++j) {
        const int column = g * 8 + lane % 4 * 2 + j;
        for (int k = 0; k < 16; ++k) {
          uint16_t bits;
          memcpy(&bits, Operand::place(b, column, k), sizeof bits);
          const float y = to_float(T{bits});
          for (int i = 0; i < 2; ++i) c[g][i * 2 + j] += rows.x[i][k] * y;
        }
      }
    }
  }
};

template <typename T, int kColumnTiles>
using RegisterProduct = ProductOfRegisters<T, kColumnTiles, ByColumns>;
template <typename T, int kColumnTiles>
using RegisterRowsProduct = ProductOfRegisters<T, kColumnTiles, ByRows>;

}  // namespace quire::cuda::ptx
