// The outputs of a row's experts, weighted and added up.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/linear/merge.cuh"
#include "cuda/vector.h"
#include "ops/experts.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

// A thread has four elements of a row: it adds up each part over the experts in their order, and
// parts as neighbours in a binary tree (merge.cuh).
template <typename T>
__global__ void __launch_bounds__(kThreads) combine_experts_kernel(const CombineExpertsParams p) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t element = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * 4;
  if (element >= p.size) return;
  TreeOfFours tree;
  float4 total{};
  for (int part = 0; part < p.num_parts; ++part) {
    float sum[4] = {};
    for (int i = 0; i < p.num_picked; ++i) {
      const int64_t pair = row * p.num_picked + i;
      const int64_t from = part * p.num_rows * p.num_picked + p.positions[pair];
      float output[4];
      load_pack(p.sums + from * p.size, element, p.size, output);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] += output[j] * p.weights[pair];
    }
    total = tree.add({sum[0], sum[1], sum[2], sum[3]}, part);
  }
  const float values[4] = {total.x, total.y, total.z, total.w};
  T* out = static_cast<T*>(p.out) + row * p.out_stride;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (element + j < p.size) out[element + j] = from_float<T>(values[j]);
}

}  // namespace

void combine_experts(const CombineExpertsParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.size + 4 * kThreads - 1) / (4 * kThreads));
  QUIRE_DISPATCH_DTYPE(p.dtype, T,
                       launch(combine_experts_kernel<T>, dim3(grid_size(p.num_rows), blocks),
                              kThreads, 0, stream, p));
}

}  // namespace quire::cuda
