// Launches of attention of prompts on tensor cores, for one type.
#pragma once

#include "cuda/attention/mma_launch.cuh"
#include "cuda/attention/prompt_warpgroup.h"
#include "cuda/attention/shared.cuh"

namespace quire::cuda {

// The kernel for one head size, as wide as the device has shared memory for.
template <typename T, int kHeadSize>
class PromptLauncher {
 public:
  static int blocks_at_once() { return chosen().blocks * num_multiprocessors(); }
  static int columns() { return chosen().columns; }

  static void run(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
    const Variant& variant = chosen();
    if (!run_prompt_warpgroups(p, work, stream)) {
      launch(variant.kernel, work.num_items, variant.threads, variant.shared_bytes, stream, p,
             work.items, work.partials);
    }
    launch(variant.merge, merge_grid(kHeadSize, variant.columns, work.num_merges), kMmaThreads, 0,
           stream, p, work.merges, work.partials);
  }

  static void run_shared(const PagedAttentionParams& p, const SharedWork& work,
                         cudaStream_t stream) {
    const Variant& variant = chosen();
    if (run_shared_warpgroups(p, work, variant.columns, stream)) return;
    launch(variant.shared, work.num_items, variant.threads, variant.shared_bytes, stream, p,
           work.items, work.members, work.partials);
  }

 private:
  struct Variant {
    void (*kernel)(PagedAttentionParams, const AttentionItem*, PartialResults);
    void (*merge)(PagedAttentionParams, const AttentionMerge*, PartialResults);
    void (*shared)(PagedAttentionParams, const SharedItem*, const int32_t*, PartialResults);
    int shared_bytes;
    int threads;
    int columns;
    int blocks;  // of a multiprocessor
  };

  // The first that the device has room for: an H100's block has 227 KB, an A100's 163, others' 99.
  static const Variant& chosen() {
    static const Variant best = [] {
      const Variant wide = variant<8, 4>();
      if constexpr (PromptShape<T, kHeadSize, 8, 4>::kSharedBytes <= kLeastBlockBytes) {
        return wide;
      } else {
        if (wide.blocks > 0) return wide;
        const Variant shallow = variant<8, 2>();
        return shallow.blocks > 0 ? shallow : variant<4, 2>();
      }
    }();
    if (best.blocks == 0) throw std::runtime_error("CUDA: prompts: do not fit the device");
    return best;
  }

  template <int kWarps, int kTiles>
  static Variant variant() {
    using Shape = PromptShape<T, kHeadSize, kWarps, kTiles>;
    const auto kernel = attention_prompt_kernel<T, kHeadSize, kWarps, kTiles>;
    return {kernel,
            attention_merge_kernel<T, kHeadSize, Shape::kColumns>,
            attention_shared_kernel<T, kHeadSize, kWarps, kTiles>,
            Shape::kSharedBytes,
            Shape::kThreads,
            Shape::kColumns,
            blocks_of_multiprocessor(kernel, Shape::kThreads, Shape::kSharedBytes)};
  }
};

}  // namespace quire::cuda
