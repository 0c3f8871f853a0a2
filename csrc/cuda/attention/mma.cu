// The calls that attention on tensor cores serves, and its kernels over caches of the activations'
// type.
#include "cuda/attention/mma_launch.cuh"

namespace quire::cuda {
namespace {

bool is_aligned(const void* data, std::initializer_list<int64_t> strides, int64_t element_bytes,
                int64_t bytes) {
  bool aligned = reinterpret_cast<uintptr_t>(data) % bytes == 0;
  for (const int64_t stride : strides) aligned = aligned && stride * element_bytes % bytes == 0;
  return aligned;
}

}  // namespace

bool is_aligned_cache(const CacheView& cache, int64_t element_bytes) {
  return is_aligned(cache.data, {cache.block_stride, cache.head_stride, cache.token_stride},
                    element_bytes, 16);
}

bool is_aligned_query(const RowsView& query) {
  return is_aligned(query.data, {query.token_stride, query.head_stride}, 2, 4);
}

bool attention_mma_serves(const PagedAttentionParams& p) {
  if (p.value_size != p.head_size) return false;
  switch (p.head_size) {
    case 64:
    case 80:
    case 96:
    case 112:
    case 128:
    case 192:
    case 256:
      break;
    default:
      return false;
  }
  const int64_t cached_bytes = p.cache_dtype == DType::kFloat8E4M3 ? 1 : 2;
  return (p.dtype == DType::kBFloat16 || p.dtype == DType::kFloat16) &&
         is_aligned_cache(p.key_cache, cached_bytes) &&
         is_aligned_cache(p.value_cache, cached_bytes) && is_aligned_query(p.query);
}

void attention_mma(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  if (p.cache_dtype == DType::kFloat8E4M3) {
    attention_mma_e4m3(p, work, stream);
  } else if (p.dtype == DType::kBFloat16) {
    attention_mma_of<bf16, bf16>(p, work, stream);
  } else {
    attention_mma_of<f16, f16>(p, work, stream);
  }
}

int attention_mma_blocks(const PagedAttentionParams& p, int columns) {
  if (p.cache_dtype == DType::kFloat8E4M3) return attention_mma_blocks_e4m3(p, columns);
  if (p.dtype == DType::kBFloat16) return attention_mma_blocks_of<bf16, bf16>(p, columns);
  return attention_mma_blocks_of<f16, f16>(p, columns);
}

}  // namespace quire::cuda
