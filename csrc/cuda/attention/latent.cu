// The calls that attention over latent rows on tensor cores serves, and its kernels.
#include "cuda/attention/latent_launch.cuh"

namespace quire::cuda {

bool attention_latent_serves(const PagedAttentionParams& p) {
  const CacheView& keys = p.key_cache;
  const CacheView& values = p.value_cache;
  const bool is_one_row = values.data == keys.data && values.block_stride == keys.block_stride &&
                          values.head_stride == keys.head_stride &&
                          values.token_stride == keys.token_stride;
  return p.head_size == kLatentKeySize && p.value_size == kLatentValueSize && is_one_row &&
         (p.dtype == DType::kBFloat16 || p.dtype == DType::kFloat16) && p.cache_dtype == p.dtype &&
         is_aligned_cache(keys, 2) && is_aligned_query(p.query);
}

void attention_latent(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  with_latent_launcher(p, work.columns, [&](auto launcher) { launcher.run(p, work, stream); });
}

int attention_latent_blocks(const PagedAttentionParams& p, int columns) {
  return with_latent_launcher(p, columns, [](auto launcher) { return launcher.blocks_at_once(); });
}

}  // namespace quire::cuda
