// Merges the results of several blocks of attention on tensor cores (plan.h): of each column those
// of its slots, in order, with a sink last.
//
// A block has a column, or up to 128 elements of it, a thread each. The order of additions leaves a
// product and an addition for each slot one after the other; all else is done ahead of them.
// Factors are made for 128 slots at once, a thread each: the largest of the maxima so far does not
// depend on the order in which they are compared. Values come by asynchronous copies, each warp's
// for itself, three batches before they are added.
#pragma once

#include "cuda/attention/mma_columns.cuh"

namespace quire::cuda {

// The blocks that a column takes.
constexpr int merge_blocks(int head_size) {
  return (head_size + kMmaThreads - 1) / kMmaThreads;
}

// The blocks of merges, whose number is bounded by how many blocks run at once. Neighbours read
// rows beside each other.
inline dim3 merge_grid(int head_size, int columns, unsigned num_merges) {
  return dim3(static_cast<unsigned>(columns * merge_blocks(head_size)), num_merges);
}

// How columns lie in blocks, and values in a warp's part of shared memory: a slot in place
// slot % kRing, kWarpSize floats.
template <int kHeadSize, int kColumns>
struct MergeShape {
  static constexpr int kParts = merge_blocks(kHeadSize);
  static constexpr int kElements = kHeadSize / kParts;                    // of a block
  static constexpr int kWarps = (kElements + kWarpSize - 1) / kWarpSize;  // that have any
  // Slots that are copied together. Where a merge has many blocks their number hides latency, and
  // more of them are to fit.
  static constexpr int kBatch = kColumns * kParts > 16 ? 8 : 16;
  static constexpr int kStages = 4;
  static constexpr int kRing = kBatch * kStages;
  static constexpr int kStride = kColumns * kHeadSize;  // floats of a slot
  static_assert(kElements * kParts == kHeadSize && kElements % 4 == 0, "16 bytes are copied");
  static_assert(kMmaThreads % kRing == 0, "slots keep their places from round to round");
};

// A warp's copies of its elements of the slots: eight lanes along a slot, four slots at once.
template <typename Shape>
class SlotCopies {
 public:
  // `from` is the block's first element in the first slot.
  __device__ SlotCopies(const float* from, int num_slots, float* ring) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int element = static_cast<int>(threadIdx.x) / kWarpSize * kWarpSize + lane % kLanes * 4;
    from_ = from + lane / kLanes * Shape::kStride + element;
    to_ = ring + lane * 4;
    left_ = element < Shape::kElements ? num_slots - lane / kLanes : 0;
  }

  // Begins to copy the next batch. Zeros stand for slots beyond the last, and for elements.
  __device__ __forceinline__ void begin_next() {
#pragma unroll
    for (int i = 0; i < Shape::kBatch; i += kSlots)
      ptx::async_copy_16(to_ + place_ + i * kWarpSize, from_ + i * Shape::kStride, i < left_);
    ptx::async_commit();
    left_ -= Shape::kBatch;
    from_ += Shape::kBatch * Shape::kStride;
    place_ = (place_ + Shape::kBatch * kWarpSize) % (Shape::kRing * kWarpSize);
  }

 private:
  static constexpr int kLanes = kWarpSize / 4;
  static constexpr int kSlots = kWarpSize / kLanes;

  int left_;  // slots from the lane's first of the batch on
  unsigned place_ = 0;
  const float* from_;
  float* to_;
};

// The states of a column's slots, as many at once as the block has threads. Their maxima are
// numbers from kUnseen on.
class SlotStates {
 public:
  // `row` is the column's in the first slot, `stride` rows before the next.
  __device__ SlotStates(const PartialResults& partials, int64_t row, int stride, int num_slots)
      : max_from_(partials.max + row),
        sum_from_(partials.sum + row),
        stride_(stride),
        num_slots_(num_slots) {}

  // Asks for the thread's slot of those from `first` on.
  __device__ __forceinline__ void load(int first) {
    const int slot = first + static_cast<int>(threadIdx.x);
    const bool exists = slot < num_slots_;
    max_ = exists ? max_from_[int64_t{slot} * stride_] : -INFINITY;
    sum_ = exists ? sum_from_[int64_t{slot} * stride_] : 0.f;
  }

  // Shows what is merged with those slots: the factors of what was merged before and of the slot's,
  // and its sum. Slots beyond the last change nothing: x * 1 + 0 * -0 is x, a zero's sign included.
  __device__ __forceinline__ void show(int first, float4* slots, float* warps_max) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % kWarpSize;
    const int warp = thread / kWarpSize;
    float largest = max_;  // of the warp's, up to the thread's
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float other = __shfl_up_sync(kFullMask, largest, distance);
      if (lane >= distance) largest = fmaxf(other, largest);
    }
    if (lane == kWarpSize - 1) warps_max[warp] = largest;
    __syncthreads();        // maxima of warps are there; the slots before have been merged
    float before = total_;  // the largest of all before the warp's
#pragma unroll
    for (int w = 0; w < kMmaWarps; ++w) {
      const float of_warp = warps_max[w];
      if (w < warp) before = fmaxf(before, of_warp);
      total_ = fmaxf(total_, of_warp);
    }
    const float last = __shfl_up_sync(kFullMask, largest, 1);
    const float earlier = lane == 0 ? before : fmaxf(before, last);
    const float larger = fmaxf(before, largest);
    float4 shown{ptx::exp2(earlier - larger), ptx::exp2(max_ - larger), sum_, 0.f};
    if (first + thread >= num_slots_) shown = {1.f, -0.f, 0.f, 0.f};
    slots[thread] = shown;
    __syncthreads();  // factors are there
  }

  // The largest maximum of those that were shown.
  __device__ float largest() const { return total_; }

 private:
  const float* max_from_;
  const float* sum_from_;
  int stride_;
  int num_slots_;
  float max_ = 0.f;
  float sum_ = 0.f;
  float total_ = -INFINITY;
};

template <typename T, int kHeadSize, int kColumns>
__global__ void __launch_bounds__(kMmaThreads, 10)
    attention_merge_kernel(const PagedAttentionParams p, const AttentionMerge* merges,
                           PartialResults partials) {
  begin_kernel();
  using Shape = MergeShape<kHeadSize, kColumns>;
  QUIRE_SHARED(float4, rings, Shape::kWarps * Shape::kRing * kWarpSize / 4);
  QUIRE_SHARED(float4, slots, kMmaThreads);
  QUIRE_SHARED(float, warps_max, kMmaWarps);
  const AttentionMerge work = merges[blockIdx.y];
  if (work.seq == kNoWork) return;
  AttentionItem item{};
  item.seq = work.seq;
  item.kv_head = work.kv_head;
  item.column = work.column;
  const ItemBounds bounds(p, item, kColumns);
  const int column = static_cast<int>(blockIdx.x) / Shape::kParts;
  if (work.column + column >= bounds.num_columns) return;
  const int part = static_cast<int>(blockIdx.x) % Shape::kParts * Shape::kElements;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const bool has_elements = warp < Shape::kWarps;

  const int64_t row = int64_t{work.slot} * kColumns + column;
  SlotStates states(partials, row, kColumns, work.num_slots);
  states.load(0);
  float* ring = reinterpret_cast<float*>(rings) + warp * Shape::kRing * kWarpSize;
  SlotCopies<Shape> copies(partials.acc + row * kHeadSize + part, work.num_slots, ring);
  if (has_elements) {
#pragma unroll
    for (int i = 0; i < Shape::kStages - 1; ++i) copies.begin_next();
  }
  const float value_scale = head_scale(p.value_scales, work.kv_head);

  // What is merged with the first slot: nothing, -0 times 0. -0 + x is x.
  float acc = -0.f;
  float sum = -0.f;
  for (int first = 0; first < work.num_slots; first += kMmaThreads) {
    states.show(first, slots, warps_max);
    states.load(first + kMmaThreads);
    if (!has_elements) continue;
    const int count = min(work.num_slots - first, kMmaThreads);
    for (int i = 0; i < count; i += Shape::kBatch) {
      ptx::async_wait<Shape::kStages - 2>();
      __syncwarp();  // the batch is there, and the one before it has been merged
      copies.begin_next();
      const float* values = ring + i % Shape::kRing * kWarpSize + lane;
#pragma unroll
      for (int j = 0; j < Shape::kBatch; ++j) {
        const float4 slot = slots[i + j];
        const MergeFactors factors{slot.x, slot.y};
        acc = merge_values(acc, values[j * kWarpSize], factors);
        sum = merge_values(sum, slot.z, factors);
      }
    }
  }
  ptx::async_wait<0>();  // there are none but zeros
  if (thread >= Shape::kElements) return;
  ColumnState total{states.largest(), sum};
  const float factor = total.add_sink(p, bounds.head(work.kv_head, work.column + column));
  bounds.address<T>(p.out, work.kv_head, work.column + column)[part + thread] =
      from_float<T>(acc * factor / total.sum * value_scale);
}

}  // namespace quire::cuda
