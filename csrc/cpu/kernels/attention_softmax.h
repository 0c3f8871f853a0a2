// The softmax of attention, tile by tile. See attention.h for how tiles make up a row's result.
#pragma once

#include "cpu/kernels/element.h"
#include "cpu/kernels/math.h"
#include "cpu/kernels/sums.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// Divides one scratch buffer into pieces; with a null base it only counts their bytes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }

  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// Softmax state of the rows of one kv head, [rows] and [rows][columns].
struct SoftmaxState {
  float* max;
  float* sum;
  float* acc;

  static SoftmaxState take(Arena& arena, int64_t rows, int64_t columns) {
    return {arena.take<float>(rows), arena.take<float>(rows), arena.take<float>(rows * columns)};
  }

  void reset(int64_t rows, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r) max[r] = -__builtin_inff();
    memset(sum, 0, rows * sizeof(float));
    memset(acc, 0, rows * columns * sizeof(float));
  }
};

inline float exp2(float x) {
  float lanes[kLanes];
  store(lanes, exp2(broadcast(x)));
  return lanes[0];
}

// Turns raw scores into base-2 logits: scale, then soft cap, then ALiBi.
struct LogitTransform {
  float scale;
  float cap;    // 0 without one
  float slope;  // of this head; 0 without ALiBi

  F32 apply(F32 s, float distance) const {  // distance = position of lane 0 minus the query's
    if (cap != 0.f) {
      s = tanh(s * broadcast(scale / cap)) * broadcast(cap * kLog2E);
    } else {
      s = s * broadcast(scale * kLog2E);
    }
    if (slope != 0.f) s = fma(broadcast(slope * kLog2E), broadcast(distance) + iota(), s);
    return s;
  }
};

// The scales of the rows of a tile of a quantised cache: that of a key multiplies its score, that
// of a value its probability.
struct TileScales {
  float* keys;
  float* values;
};

// Folds one tile of scores, of which the row sees tokens [begin, end), into the row's state; scores
// become weights of the values.
template <int Tokens, bool IsScaled>
inline void softmax_row(float* scores, int begin, int end, float distance,
                        const LogitTransform& transform, const TileScales& scales, float* max_,
                        float* sum_, float* acc, int64_t columns) {
  constexpr int kVectors = Tokens / kLanes;
  const F32 lowest = broadcast(-__builtin_inff());
  F32 logits[kVectors];
  F32 tile_max = lowest;
  for (int v = 0; v < kVectors; ++v) {
    F32 score = load(scores + v * kLanes);
    if constexpr (IsScaled) score = score * load(scales.keys + v * kLanes);
    logits[v] = transform.apply(score, distance + static_cast<float>(v * kLanes));
    if (begin != 0 || end != Tokens) {
      const F32 token = iota() + broadcast(static_cast<float>(v * kLanes));
      logits[v] = select_less(token, broadcast(static_cast<float>(begin)), lowest, logits[v]);
      logits[v] = select_less(token, broadcast(static_cast<float>(end)), logits[v], lowest);
    }
    tile_max = max(tile_max, logits[v]);
  }
  const float candidate = reduce_max(tile_max);
  if (candidate > *max_) {
    const float factor = exp2(*max_ - candidate);
    *max_ = candidate;
    *sum_ *= factor;
    for (int64_t c = 0; c < columns; c += kLanes) store(acc + c, load(acc + c) * broadcast(factor));
  }
  F32 sums[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const F32 p = exp2(logits[v] - broadcast(*max_));
    sums[v] = p;
    if constexpr (IsScaled) {
      store(scores + v * kLanes, p * load(scales.values + v * kLanes));
    } else {
      store(scores + v * kLanes, p);
    }
  }
  *sum_ += fold_sums<Tokens>(sums);
}

// Merges the softmax state of a partition into (max, sum, acc) of all before it.
inline void merge_row(const SoftmaxState& total, const SoftmaxState& part, int64_t row,
                      int64_t columns) {
  const float max = total.max[row] > part.max[row] ? total.max[row] : part.max[row];
  const float a = exp2(total.max[row] - max);
  const float b = exp2(part.max[row] - max);
  total.max[row] = max;
  total.sum[row] = total.sum[row] * a + part.sum[row] * b;
  float* acc = total.acc + row * columns;
  const float* part_acc = part.acc + row * columns;
  for (int64_t c = 0; c < columns; c += kLanes) {
    store(acc + c, fma(load(part_acc + c), broadcast(b), load(acc + c) * broadcast(a)));
  }
}

// Merges the sink of a row's query head as a partition of one key of no value.
inline void add_sink(const SoftmaxState& total, float sink, int64_t row, int64_t columns) {
  const float logit = sink * kLog2E;
  const float max = total.max[row] > logit ? total.max[row] : logit;
  const float a = exp2(total.max[row] - max);
  total.sum[row] = total.sum[row] * a + exp2(logit - max);
  float* acc = total.acc + row * columns;
  for (int64_t c = 0; c < columns; c += kLanes) store(acc + c, load(acc + c) * broadcast(a));
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
