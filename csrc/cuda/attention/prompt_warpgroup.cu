// Instances of attention of prompts, and of what sequences share, by warpgroups. A source of its
// own: what aligns their shared memory would align that of other kernels, too.
#include <cstdlib>
#include <string_view>

#include "cuda/attention/prompt_warpgroup.h"
#include "cuda/attention/shared_warpgroup.cuh"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

template <typename T, int kHeadSize>
void run(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  launch(warpgroup_prompt_kernel<T, kHeadSize>, work.num_items, Shape::kThreads,
         Shape::kSharedBytes, stream, p, work.items, work.partials);
}

template <typename T, int kHeadSize>
void run(const PagedAttentionParams& p, const SharedWork& work, cudaStream_t stream) {
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  launch(warpgroup_shared_kernel<T, kHeadSize>, work.num_items, Shape::kThreads,
         Shape::kSharedBytes, stream, p, work.items, work.members, work.partials);
}

template <typename T, typename Work>
void run_any(const PagedAttentionParams& p, const Work& work, cudaStream_t stream) {
  if (p.head_size == 64) return run<T, 64>(p, work, stream);
  run<T, 128>(p, work, stream);
}

// QUIRE_PROMPT_WARPGROUPS=0 leaves both to single warps, to find which of the two is at fault.
bool are_wanted() {
  const char* asked = std::getenv("QUIRE_PROMPT_WARPGROUPS");
  return asked == nullptr || std::string_view(asked) != "0";
}

// Returns whether blocks of so many columns were started.
template <typename Work>
bool start(const PagedAttentionParams& p, const Work& work, int columns, cudaStream_t stream) {
  if (!has_warpgroups() || !are_wanted() || columns != WarpgroupPromptShape<bf16, 128>::kColumns)
    return false;
  if (p.dtype == DType::kBFloat16) {
    run_any<bf16>(p, work, stream);
  } else {
    run_any<f16>(p, work, stream);
  }
  return true;
}

}  // namespace

bool run_prompt_warpgroups(const PagedAttentionParams& p, const DeviceWork& work,
                           cudaStream_t stream) {
  return start(p, work, work.columns, stream);
}

bool run_shared_warpgroups(const PagedAttentionParams& p, const SharedWork& work, int columns,
                           cudaStream_t stream) {
  return start(p, work, columns, stream);
}

}  // namespace quire::cuda
