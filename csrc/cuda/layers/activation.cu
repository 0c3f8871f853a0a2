// Activations, plain and gated. Each element is computed in float32 and rounded once.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/vector.h"
#include "ops/layers.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float x) {
  return 1.f / (1.f + expf(-x));
}

struct Silu {
  static __device__ float apply(float x) { return x * sigmoid(x); }
};

// x Phi(x), where Phi(x) = erfc(-x / sqrt(2)) / 2: no cancellation for negative x.
struct Gelu {
  static __device__ float apply(float x) { return x * 0.5f * erfcf(-x * 0.70710678f); }
};

// (1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static __device__ float apply(float x) {
    const float inner = fmaf(x * x * 0.044715f, x, x);
    return x * sigmoid(inner * (2 * 0.79788456f));
  }
};

struct QuickGelu {
  static __device__ float apply(float x) { return x * sigmoid(x * 1.702f); }
};

template <typename T, typename Fn>
__global__ void __launch_bounds__(kThreads) activation_kernel(const ActivationParams p) {
  begin_kernel();
  constexpr int kPack = Pack<T>::kSize;
  const int64_t row = blockIdx.x;
  T* out = static_cast<T*>(p.out) + row * p.out_stride;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  const int64_t stride = int64_t{gridDim.y} * kThreads * kPack;
  for (int64_t begin = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack; begin < p.n;
       begin += stride) {
    float y[kPack];
    load_pack(x, begin, p.n, y);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = Fn::apply(y[i]);
    if (p.gated) {
      float gate[kPack];
      load_pack(x + p.n, begin, p.n, gate);
#pragma unroll
      for (int i = 0; i < kPack; ++i) y[i] *= gate[i];
    }
    store_pack(out, begin, p.n, y);
  }
}

template <typename Fn>
void activate(const ActivationParams& p, cudaStream_t stream) {
  // Few rows of many columns are shared by several blocks: 64 elements a thread at most.
  constexpr int64_t kColumnsOfBlock = 8 * kThreads * 8;
  const auto parts = static_cast<unsigned>((p.n + kColumnsOfBlock - 1) / kColumnsOfBlock);
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T,
      launch(activation_kernel<T, Fn>, dim3(grid_size(p.rows), parts), kThreads, 0, stream, p));
}

}  // namespace

void silu_and_mul(const ActivationParams& p, cudaStream_t stream) {
  activate<Silu>(p, stream);
}

void gelu_and_mul(const ActivationParams& p, cudaStream_t stream) {
  activate<Gelu>(p, stream);
}

void gelu_tanh_and_mul(const ActivationParams& p, cudaStream_t stream) {
  activate<GeluTanh>(p, stream);
}

void gelu(const ActivationParams& p, cudaStream_t stream) {
  activate<Gelu>(p, stream);
}

void gelu_tanh(const ActivationParams& p, cudaStream_t stream) {
  activate<GeluTanh>(p, stream);
}

void quick_gelu(const ActivationParams& p, cudaStream_t stream) {
  activate<QuickGelu>(p, stream);
}

}  // namespace quire::cuda
