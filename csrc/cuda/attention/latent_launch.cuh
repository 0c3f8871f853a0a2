// Launches of attention over latent rows, for one type.
#pragma once

#include "cuda/attention/latent.cuh"
#include "cuda/attention/mma_launch.cuh"

namespace quire::cuda {

// The kernels of so many groups of 16 columns, with as many stages as suit the device.
template <typename T, int kGroups>
class LatentLauncher {
 public:
  static constexpr int kColumns = kGroups * kLatentGroupColumns;

  static int blocks_at_once() { return chosen().blocks * num_multiprocessors(); }

  static void run(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
    const Variant& variant = chosen();
    launch(variant.kernel, work.num_items, kGroups * kLatentQuarters * kWarpSize,
           variant.shared_bytes, stream, p, work.items, work.partials);
    launch(attention_merge_kernel<T, kLatentValueSize, kColumns>,
           merge_grid(kLatentValueSize, kColumns, work.num_merges), kMmaThreads, 0, stream, p,
           work.merges, work.partials);
  }

  struct Variant {
    void (*kernel)(PagedAttentionParams, const AttentionItem*, PartialResults);
    int shared_bytes;
    int blocks;  // of a multiprocessor
    int stages;
  };

  // The deeper, unless the other runs in more blocks: the phases of one fill those of another.
  static const Variant& chosen() {
    static const Variant best = [] {
      static_assert(LatentShape<T, kGroups, 2>::kSharedBytes <= kLeastBlockBytes,
                    "a block must fit every device");
      const Variant deep = variant<kGroups == 1 ? 4 : 3>();
      const Variant flat = variant<2>();
      return flat.blocks > deep.blocks ? flat : deep;
    }();
    if (best.blocks == 0) throw std::runtime_error("CUDA: attention: does not fit the device");
    return best;
  }

 private:
  template <int kStages>
  static Variant variant() {
    using Shape = LatentShape<T, kGroups, kStages>;
    const auto kernel = attention_latent_kernel<T, kGroups, kStages>;
    return {kernel, Shape::kSharedBytes,
            blocks_of_multiprocessor(kernel, Shape::kThreads, Shape::kSharedBytes), kStages};
  }
};

// Calls body(launcher) with the LatentLauncher of a call.
template <typename Body>
auto with_latent_launcher(const PagedAttentionParams& p, int columns, const Body& body) {
  const auto of_type = [&](auto few, auto many) {
    return columns == decltype(few)::kColumns ? body(few) : body(many);
  };
  if (p.dtype == DType::kBFloat16)
    return of_type(LatentLauncher<bf16, 1>(), LatentLauncher<bf16, 2>());
  return of_type(LatentLauncher<f16, 1>(), LatentLauncher<f16, 2>());
}

}  // namespace quire::cuda
