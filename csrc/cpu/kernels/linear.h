// Dense layers over weights that were packed once into panels of 32 features (see pack_weight in
// cpu/linear.cpp). docs/numerics.md has the order of roundings of a result.
//
// A task is a group of panels times all rows. Rows beyond a register tile are cut into blocks whose
// sums stay in the cache, and all sums of a block are brought forward by one chunk of K before the
// next chunk is read.
#pragma once

#include <cstdlib>
#include <new>

#include "core/dispatch.h"
#include "cpu/kernels/linear_tile.h"
#include "cpu/kernels/parallel.h"
#include "ops/linear.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int64_t kChunk = 256;        // elements of K whose sum begins at zero
constexpr int64_t kTilesOfBlock = 14;  // of rows; more would push their sums out of the cache

#if defined(__AVX512F__)
constexpr int kMaxTileRows = 14;
constexpr int vectors_of(int) {
  return 2;
}
constexpr int panels_of(int rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}
#elif defined(__AVX2__)
constexpr int kMaxTileRows = 6;
constexpr int vectors_of(int rows) {
  return rows <= 2 ? 4 : 2;
}
constexpr int panels_of(int rows) {
  return rows == 1 ? 2 : 1;
}
#else
constexpr int kMaxTileRows = 4;
constexpr int vectors_of(int) {
  return 4;
}
constexpr int panels_of(int) {
  return 1;
}
#endif

// How the elements of a type are multiplied: their layout in a panel, and the packed type of x.
template <typename T>
struct Operands;
template <>
struct Operands<float> {
  using Pair = FloatPair;
  using X = float;
};
template <>
struct Operands<f16> {
  using Pair = HalfPair;
  using X = float;
};
template <>
struct Operands<bf16> {
  using Pair = Bf16Pair;
#if defined(__AVX512BF16__)
  using X = bf16;
#else
  using X = float;
#endif
};

// The tile of `rows` rows, a constant of kRows or fewer.
template <typename Pair, int kRows, bool kIsStream, bool kIsMulti>
void multiply_rows(int rows, const XRows<float>& x, const TileWeights& weights,
                   const TileSums& out) {
  if constexpr (kRows > 1) {
    if (rows < kRows)
      return multiply_rows<Pair, kRows - 1, kIsStream, kIsMulti>(rows, x, weights, out);
  }
  constexpr int kVectors = vectors_of(kRows);
  for (int column = 0; column < kPanel; column += kVectors * kLanes) {
    multiply_tile<Pair, kRows, kIsMulti ? panels_of(kRows) : 1, kVectors, kIsStream>(x, weights,
                                                                                     column, out);
  }
}

#if defined(__AVX512BF16__)
template <typename Pair, int kRows, bool kIsStream, bool kIsMulti>
void multiply_rows(int rows, const XRows<bf16>& x, const TileWeights& weights,
                   const TileSums& out) {
  if constexpr (kRows > 1) {
    if (rows < kRows)
      return multiply_rows<Pair, kRows - 1, kIsStream, kIsMulti>(rows, x, weights, out);
  }
  multiply_tile_of_pairs<kRows, kIsMulti ? panels_of(kRows) : 1, kIsStream>(x, weights, out);
}
#endif

// Memory that a thread keeps from call to call.
class RowMemory {
 public:
  RowMemory() = default;
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;
  ~RowMemory() { free(data_); }

  void* get(int64_t bytes) {
    if (bytes > bytes_) {
      free(data_);
      bytes_ = round_up(bytes, 64);
      data_ = aligned_alloc(64, bytes_);
      if (data_ == nullptr) {
        bytes_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

template <typename T>
class LinearCall {
  using Pair = typename Operands<T>::Pair;
  using X = typename Operands<T>::X;

 public:
  LinearCall(const PackedLinearParams& p, ThreadPool& pool)
      : p_(p),
        pool_(pool),
        part_(round_up(p.in_features, 2) / p.num_parts),
        blocks_of_part_(round_up(part_, kXBlock) / kXBlock),
        num_panels_(round_up(p.out_features, kPanel) / kPanel),
        panel_bytes_(round_up(p.in_features, 2) / 2 * Pair::kBytes),
        is_stream_(p.num_rows <= kMaxTileRows) {
    const int64_t max_rows = kTilesOfBlock * kMaxTileRows;
    const int64_t num_blocks = (p.num_rows + max_rows - 1) / max_rows;
    block_rows_ = (p.num_rows + num_blocks - 1) / num_blocks;
    // An odd number of lines, so that the blocks of a row do not share a set of the cache.
    block_stride_ = (block_rows_ | 1) * kXBlock;
    row_block_stride_ = block_stride_ * blocks_of_part_ * p.num_parts;
    static thread_local RowMemory memory;
    x_ = static_cast<X*>(memory.get(row_block_stride_ * num_blocks * int64_t{sizeof(X)}));
    choose_group();
  }

  void run() {
    constexpr int64_t kRowsOfTask = 16;
    if (p_.num_rows < kRowsOfTask) {
      for (int64_t row = 0; row < p_.num_rows; ++row) pack_row(row);
    } else {
      parallel_for(pool_, (p_.num_rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t i, int) {
        const int64_t end = min_of(p_.num_rows, (i + 1) * kRowsOfTask);
        for (int64_t row = i * kRowsOfTask; row < end; ++row) pack_row(row);
      });
    }
    parallel_for(pool_, (num_panels_ + group_ - 1) / group_,
                 [&](int64_t i, int worker) { multiply_group(i * group_, worker); });
  }

 private:
  // A task has enough panels that its start costs little, and few enough that all threads get some.
  void choose_group() {
    constexpr int64_t kStreamBytes = 64 << 10;
    const int64_t threads = pool_.num_threads();
    const auto tasks = [&] { return (num_panels_ + group_ - 1) / group_; };
    if (is_stream_) {
      const int64_t least = panels_of(static_cast<int>(p_.num_rows));
      group_ = least;
      while (group_ * panel_bytes_ < kStreamBytes) group_ *= 2;
      while (group_ > least && tasks() < 2 * threads) group_ /= 2;
    } else {
      group_ = 4;
      while (group_ > 1 && tasks() < 4 * threads) group_ /= 2;
    }
  }

  X* packed_row(int64_t row) const {
    return x_ + row / block_rows_ * row_block_stride_ + row % block_rows_ * kXBlock;
  }

  void pack_row(int64_t row) const {
    const T* src = static_cast<const T*>(p_.x) + row * p_.x_stride;
    X* dst = packed_row(row);
    for (int64_t part = 0; part < p_.num_parts; ++part) {
      const int64_t end = min_of(p_.in_features, (part + 1) * part_);
      for (int64_t k = part * part_; k < (part + 1) * part_; k += kXBlock, dst += block_stride_) {
        if (k + kXBlock <= end) {
          pack_elements(dst, src + k, kXBlock);
        } else {
          memset(dst, 0, kXBlock * sizeof(X));
          pack_elements(dst, src + k, static_cast<int>(end - k));
        }
      }
    }
  }

  static void pack_elements(X* dst, const T* src, int count) {
    if constexpr (sizeof(X) == sizeof(T)) {
      memcpy(dst, src, count * sizeof(T));
    } else {
      int k = 0;
      for (; k + kLanes <= count; k += kLanes) store(dst + k, load(src + k));
      for (; k < count; ++k) dst[k] = to_float(src[k]);
    }
  }

  // Sums of the parts so far that no neighbour has been added to yet. Part i is computed at the
  // level of as many of them as there are, and added to those of its left neighbours that are now
  // complete: a binary tree.
  void multiply_group(int64_t first_panel, int worker) {
    constexpr int kMaxLevels = 4;  // of 8 parts
    const int64_t num_panels = min_of(group_, num_panels_ - first_panel);
    const int64_t stride = group_ * kPanel + kXBlock;
    const int64_t level_size = block_rows_ * stride;
    const int num_levels = p_.num_parts == 1 ? 1 : kMaxLevels;
    float* sums = static_cast<float*>(
        pool_.scratch(worker, num_levels * level_size * int64_t{sizeof(float)}));
    const bool is_one_chunk = part_ <= kChunk;
    for (int64_t row = 0; row < p_.num_rows; row += block_rows_) {
      const int64_t rows = min_of(block_rows_, p_.num_rows - row);
      for (int64_t part = 0; part < p_.num_parts; ++part) {
        int level = __builtin_popcountll(part);
        int num_merges = __builtin_ctzll(~part);
        // The sum of its only chunk is added to its neighbour at once.
        const bool is_merged = is_one_chunk && num_merges > 0;
        if (is_merged) {
          --level;
          --num_merges;
        }
        for (int64_t k = 0; k < part_; k += kChunk) {
          multiply_chunk({first_panel, num_panels, row, rows, part, k},
                         {sums + level * level_size, stride, is_merged || k > 0});
        }
        for (; num_merges > 0; --num_merges, --level) {
          add_sums(sums + (level - 1) * level_size, sums + level * level_size, rows * stride);
        }
      }
      finish(sums, stride, first_panel, row, rows);
    }
  }

  // One chunk of K of a group: panels x rows, and k elements behind the start of a part.
  struct Chunk {
    int64_t first_panel;
    int64_t num_panels;
    int64_t row;
    int64_t rows;
    int64_t part;
    int64_t k;
  };

  void multiply_chunk(const Chunk& chunk, const TileSums& sums) const {
    const int64_t elements = min_of(kChunk, part_ - chunk.k);
    const int64_t first_k = chunk.part * part_ + chunk.k;
    const char* weights = static_cast<const char*>(p_.weight) + chunk.first_panel * panel_bytes_ +
                          first_k / 2 * Pair::kBytes;
    const int64_t x_block = chunk.part * blocks_of_part_ + chunk.k / kXBlock;
    const XRows<X> x{packed_row(chunk.row) + x_block * block_stride_, block_stride_};
    const int pairs = static_cast<int>(elements / 2);
    if (is_stream_) {
      stream_chunk(chunk, x, {weights, panel_bytes_, nullptr, pairs}, sums);
    } else {
      for (int64_t panel = 0; panel < chunk.num_panels; ++panel) {
        const char* next = panel + 1 < chunk.num_panels
                               ? weights + panel_bytes_
                               : weights - panel * panel_bytes_ + pairs * Pair::kBytes;
        multiply_panel(chunk.rows, x, {weights, 0, next, pairs},
                       {sums.data + panel * kPanel, sums.stride, sums.adds});
        weights += panel_bytes_;
      }
    }
  }

  // All rows in one tile: each weight is read once, from as many panels at a time as fit.
  void stream_chunk(const Chunk& chunk, const XRows<X>& x, TileWeights weights,
                    TileSums sums) const {
    const int rows = static_cast<int>(chunk.rows);
    const int at_once = panels_of(rows);
    int64_t panel = 0;
    for (; at_once > 1 && panel + at_once <= chunk.num_panels; panel += at_once) {
      multiply_rows<Pair, kMaxTileRows, true, true>(rows, x, weights, sums);
      weights.data += at_once * panel_bytes_;
      sums.data += at_once * kPanel;
    }
    for (; panel < chunk.num_panels; ++panel) {
      multiply_rows<Pair, kMaxTileRows, true, false>(rows, x, weights, sums);
      weights.data += panel_bytes_;
      sums.data += kPanel;
    }
  }

  // One panel: tiles of about equal height. The first two fetch half of the next weights each.
  static void multiply_panel(int64_t rows, const XRows<X>& x, const TileWeights& weights,
                             const TileSums& sums) {
    const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
    int64_t row = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t height = (rows - row + tiles - tile - 1) / (tiles - tile);
      TileWeights own = weights;
      own.next =
          tile < 2 ? weights.next + tile * weights.num_pairs * (Pair::kBytes / 2) : weights.data;
      multiply_rows<Pair, kMaxTileRows, false, false>(
          static_cast<int>(height), {x.data + row * kXBlock, x.block_stride}, own,
          {sums.data + row * sums.stride, sums.stride, sums.adds});
      row += height;
    }
  }

  static void add_sums(float* left, const float* right, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) store(left + i, load(left + i) + load(right + i));
  }

  void finish(const float* sums, int64_t stride, int64_t first_panel, int64_t first_row,
              int64_t rows) const {
    const int64_t begin = first_panel * kPanel;
    const int64_t count = min_of(group_ * kPanel, p_.out_features - begin);
    const float* bias = p_.bias == nullptr ? nullptr : p_.bias + begin;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = (first_row + row) * p_.out_stride + begin;
      if (p_.out_is_float) {
        write_row(static_cast<float*>(p_.out) + at, sums + row * stride, bias, count);
      } else {
        write_row(static_cast<T*>(p_.out) + at, sums + row * stride, bias, count);
      }
    }
  }

  template <typename Out>
  static void write_row(Out* out, const float* sums, const float* bias, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      store(out + i, bias == nullptr ? load(sums + i) : load(sums + i) + load(bias + i));
    }
    if (i < count) {
      const int left = static_cast<int>(count - i);
      const F32 sum = load_partial(sums + i, left);
      store_partial(out + i, bias == nullptr ? sum : sum + load_partial(bias + i, left), left);
    }
  }

  const PackedLinearParams& p_;
  ThreadPool& pool_;
  const int64_t part_;  // elements of K of a part, an even number
  const int64_t blocks_of_part_;
  const int64_t num_panels_;
  const int64_t panel_bytes_;
  const bool is_stream_;
  int64_t block_rows_;
  int64_t block_stride_;      // of x_: from a block of K to the next
  int64_t row_block_stride_;  // of x_: from a block of rows to the next
  int64_t group_;             // panels of a task
  X* x_;
};

}  // namespace

void packed_linear(const PackedLinearParams& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, LinearCall<T>(p, pool).run());
}

}  // namespace quire::cpu::QUIRE_ISA
