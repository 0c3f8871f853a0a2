// Instances of attention of prompts by warpgroups. A source of its own: what aligns their shared
// memory would align that of other kernels, too.
#include <cstdlib>
#include <string_view>

#include "cuda/attention/prompt_warpgroup.cuh"
#include "cuda/attention/prompt_warpgroup.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

template <typename T, int kHeadSize>
void run(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  launch(warpgroup_prompt_kernel<T, kHeadSize>, work.num_items, Shape::kThreads,
         Shape::kSharedBytes, stream, p, work.items, work.partials);
}

template <typename T>
void run(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  if (p.head_size == 64) return run<T, 64>(p, work, stream);
  run<T, 128>(p, work, stream);
}

// QUIRE_PROMPT_WARPGROUPS=0 leaves prompts to single warps, to find which of the two is at fault.
bool are_wanted() {
  const char* asked = std::getenv("QUIRE_PROMPT_WARPGROUPS");
  return asked == nullptr || std::string_view(asked) != "0";
}

}  // namespace

bool run_prompt_warpgroups(const PagedAttentionParams& p, const DeviceWork& work,
                           cudaStream_t stream) {
  if (!has_warpgroups() || !are_wanted() ||
      work.columns != WarpgroupPromptShape<bf16, 128>::kColumns)
    return false;
  if (p.dtype == DType::kBFloat16) {
    run<bf16>(p, work, stream);
  } else {
    run<f16>(p, work, stream);
  }
  return true;
}

}  // namespace quire::cuda
