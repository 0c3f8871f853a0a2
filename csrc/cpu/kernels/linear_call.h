// A dense layer over weights that were packed once into panels of 32 features, whatever they hold:
// linear.h and linear_int8.h have the kinds. docs/numerics.md has the order of roundings.
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

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int64_t kTilesOfBlock = 14;  // of rows; more would push their sums out of the cache

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

// A call of packed_linear over operands of one kind, which are
//   T                type of x and, unless that is float, of the result
//   X                of the rows as they are packed
//   kStep            elements of K that a tile takes together
//   kStepBytes       of them, with all features of a panel
//   kTailBytes       of a panel behind each part
//   kChunk           elements of K whose sum begins at zero
//   bytes_of         so many elements of K of a panel
//   row_elements     the elements of a part of a row, converted where that takes the whole part
//   rows             what a tile needs of x
//   multiply_rows    the tile of so many rows
//   kIsUnpacked      whether tiles read chunks that `unpack` makes
//   multiply_packed  a chunk of up to kMaxPackedRows rows without that
template <typename Operands>
class LinearCall {
  using T = typename Operands::T;
  using X = typename Operands::X;
  static constexpr int64_t kChunk = Operands::kChunk;
  static constexpr int kStep = Operands::kStep;
  static constexpr int kStepBytes = Operands::kStepBytes;

 public:
  LinearCall(const PackedLinearParams& p, ThreadPool& pool)
      : p_(p),
        pool_(pool),
        operands_(p),
        length_(p.in_features / p.num_parts),
        part_(round_up(length_, kStep)),
        blocks_of_part_(round_up(part_, kXBlock) / kXBlock),
        num_panels_(round_up(p.out_features, kPanel) / kPanel),
        part_bytes_(operands_.bytes_of(part_) + Operands::kTailBytes),
        panel_bytes_(p.num_parts * part_bytes_),
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
      const FlushDenormals environment;
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

  // The same within a task of `worker`.
  void run_alone(int worker) {
    for (int64_t row = 0; row < p_.num_rows; ++row) pack_row(row);
    for (int64_t panel = 0; panel < num_panels_; panel += group_) multiply_group(panel, worker);
  }

 private:
  // A task has enough panels that its start costs little, and few enough that all threads get some.
  void choose_group() {
    constexpr int64_t kStreamBytes = 64 << 10;
    const int64_t threads = pool_.num_threads();
    group_ = is_stream_ ? 1 : 4;
    const auto tasks = [&] { return (num_panels_ + group_ - 1) / group_; };
    if (is_stream_) {
      while (group_ * panel_bytes_ < kStreamBytes) group_ *= 2;
      while (group_ > 1 && tasks() < 2 * threads) group_ /= 2;
    } else {
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
      const auto* elements = operands_.row_elements(src + part * length_, length_, row, part);
      for (int64_t k = 0; k < part_; k += kXBlock, dst += block_stride_) {
        if (k + kXBlock <= length_) {
          pack_elements(dst, elements + k, kXBlock);
        } else {
          memset(dst, 0, kXBlock * sizeof(X));
          pack_elements(dst, elements + k, static_cast<int>(length_ - k));
        }
      }
    }
  }

  template <typename Element>
  static void pack_elements(X* dst, const Element* src, int count) {
    if constexpr (sizeof(X) == sizeof(Element)) {
      memcpy(dst, src, count * sizeof(X));
    } else {
      int k = 0;
      for (; k + kLanes <= count; k += kLanes) store(dst + k, load(src + k));
      for (; k < count; ++k) dst[k] = to_float(src[k]);
    }
  }

  // Weights that are read once are read front to back, which memory likes best: all of K of a panel
  // before the next one. Of others the panels of a task share the rows of a chunk of K.
  void multiply_group(int64_t first_panel, int worker) {
    const int64_t end = min_of(first_panel + group_, num_panels_);
    const int64_t at_once = is_stream_ ? 1 : group_;
    for (int64_t panel = first_panel; panel < end; panel += at_once)
      multiply_panels(panel, min_of(at_once, end - panel), worker);
  }

  // Sums of the parts so far that no neighbour has been added to yet. Part i is computed at the
  // level of as many of them as there are, and added to those of its left neighbours that are now
  // complete: a binary tree.
  void multiply_panels(int64_t first_panel, int64_t num_panels, int worker) {
    constexpr int kMaxLevels = 4;  // of 8 parts
    const int64_t stride = num_panels * kPanel + kXBlock;
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
      finish(sums, stride, first_panel, num_panels, row, rows);
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
    const char* weights = static_cast<const char*>(p_.weight) + chunk.first_panel * panel_bytes_ +
                          chunk.part * part_bytes_ + operands_.bytes_of(chunk.k);
    const int64_t x_block = chunk.part * blocks_of_part_ + chunk.k / kXBlock;
    const auto x = operands_.rows(packed_row(chunk.row) + x_block * block_stride_, block_stride_,
                                  chunk.row, chunk.part);
    const int steps = static_cast<int>(elements / kStep);
    int64_t panel_stride = panel_bytes_;
    if constexpr (Operands::kIsUnpacked) {
      if constexpr (Operands::kMaxPackedRows > 0) {
        if (chunk.rows <= Operands::kMaxPackedRows) {
          for (int64_t panel = 0; panel < chunk.num_panels; ++panel) {
            operands_.multiply_packed(chunk.rows, x, weights + panel * panel_bytes_, elements,
                                      {sums.data + panel * kPanel, sums.stride, sums.adds});
          }
          return;
        }
      }
      panel_stride = int64_t{steps} * kStepBytes;
      weights = operands_.unpack(weights, panel_bytes_, chunk.num_panels, panel_stride, elements);
    }
    if (is_stream_) {  // all rows in one tile
      Operands::template multiply_rows<kMaxTileRows, true>(static_cast<int>(chunk.rows), x,
                                                           {weights, nullptr, steps}, sums);
      return;
    }
    for (int64_t panel = 0; panel < chunk.num_panels; ++panel) {
      const char* next = panel + 1 < chunk.num_panels
                             ? weights + panel_stride
                             : weights - panel * panel_stride + steps * kStepBytes;
      multiply_panel(chunk.rows, x, {weights, next, steps},
                     {sums.data + panel * kPanel, sums.stride, sums.adds});
      weights += panel_stride;
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
          tile < 2 ? weights.next + tile * weights.num_steps * (kStepBytes / 2) : weights.data;
      Operands::template multiply_rows<kMaxTileRows, false>(
          static_cast<int>(height), x.from(row), own,
          {sums.data + row * sums.stride, sums.stride, sums.adds});
      row += height;
    }
  }

  static void add_sums(float* left, const float* right, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) store(left + i, load(left + i) + load(right + i));
  }

  void finish(const float* sums, int64_t stride, int64_t first_panel, int64_t num_panels,
              int64_t first_row, int64_t rows) const {
    const int64_t begin = first_panel * kPanel;
    const int64_t count = min_of(num_panels * kPanel, p_.out_features - begin);
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

  const PackedLinearParams p_;
  ThreadPool& pool_;
  Operands operands_;
  const int64_t length_;  // elements of K of a part
  const int64_t part_;    // the same in whole steps
  const int64_t blocks_of_part_;
  const int64_t num_panels_;
  const int64_t part_bytes_;  // of the weights of a panel
  const int64_t panel_bytes_;
  const bool is_stream_;
  int64_t block_rows_;
  int64_t block_stride_;      // of x_: from a block of K to the next
  int64_t row_block_stride_;  // of x_: from a block of rows to the next
  int64_t group_;             // panels of a task
  X* x_;
};

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
