// The sequences of a step whose many columns share tiles of keys, and their kernels.
#include "cuda/attention/prompt_launch.cuh"

namespace quire::cuda {
namespace {

template <typename T, typename Body>
auto with_prompt_launcher(const PagedAttentionParams& p, const Body& body) {
  if (p.head_size == 64) return body(PromptLauncher<T, 64>());
  return body(PromptLauncher<T, 128>());
}

template <typename Body>
auto with_prompt_launcher(const PagedAttentionParams& p, const Body& body) {
  if (p.dtype == DType::kBFloat16) return with_prompt_launcher<bf16>(p, body);
  return with_prompt_launcher<f16>(p, body);
}

}  // namespace

bool attention_prompt_serves(const PagedAttentionParams& p) {
  return (p.head_size == 64 || p.head_size == 128) && p.cache_dtype == p.dtype &&
         attention_mma_serves(p);
}

void attention_prompt(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  with_prompt_launcher(p, [&](auto launcher) { launcher.run(p, work, stream); });
}

void attention_shared(const PagedAttentionParams& p, const SharedWork& work, cudaStream_t stream) {
  with_prompt_launcher(p, [&](auto launcher) { launcher.run_shared(p, work, stream); });
}

int attention_prompt_blocks(const PagedAttentionParams& p) {
  return with_prompt_launcher(p, [](auto launcher) { return launcher.blocks_at_once(); });
}

int attention_prompt_columns(const PagedAttentionParams& p) {
  return with_prompt_launcher(p, [](auto launcher) { return launcher.columns(); });
}

}  // namespace quire::cuda
