// Launches of attention on tensor cores, for one type of activations and one of caches.
#pragma once

#include "core/dispatch.h"
#include "cuda/attention/merge.cuh"
#include "cuda/attention/mma.cuh"
#include "cuda/launch.h"

namespace quire::cuda {

// Shared memory of devices of capability 8.0 and above: the least of a block and of a
// multiprocessor, which those of 8.6, 8.9 and 12.0 have, and an A100's multiprocessor.
constexpr int kLeastBlockBytes = 99 << 10;
constexpr int kLeastKb = 100;
constexpr int kA100Kb = 164;

// The kernels for one head size and number of columns, with as many stages as suit the device.
template <typename T, typename Cached, int kHeadSize, int kColumnTiles>
class MmaLauncher {
 public:
  struct Variant {
    void (*kernel)(PagedAttentionParams, const AttentionItem*, PartialResults);
    int shared_bytes;
    int blocks;  // of a multiprocessor
    int stages;

    int stages_of_multiprocessor() const { return blocks * stages; }
  };

  static int blocks_at_once() { return chosen().blocks * num_multiprocessors(); }

  static void run(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
    constexpr int kColumns = 8 * kColumnTiles;
    const Variant& variant = chosen();
    launch(variant.kernel, work.num_items, kMmaThreads, variant.shared_bytes, stream, p, work.items,
           work.partials);
    launch(attention_merge_kernel<T, kHeadSize, kColumns>,
           merge_grid(kHeadSize, kColumns, work.num_merges), kMmaThreads, 0, stream, p, work.merges,
           work.partials);
  }

  // The one with most bytes in flight, and then that with the deeper pipeline.
  static const Variant& chosen() {
    static const Variant best = [] {
      constexpr int kMost = most_stages<Cached, kHeadSize>();
      using Deep = MmaShape<Cached, kHeadSize, kColumnTiles, kMost>;
      using Flat = MmaShape<Cached, kHeadSize, kColumnTiles, kMost - 1>;
      static_assert(Flat::kSharedBytes <= kLeastBlockBytes, "a block must fit every device");
      const Variant deep = variant<kMost>();
      // The other is compiled only if some device would choose it.
      if constexpr (Deep::two_fit(kA100Kb) &&
                    (Deep::two_fit(kLeastKb) || !Flat::two_fit(kLeastKb))) {
        return deep;
      } else {
        const Variant flat = variant<kMost - 1>();
        return flat.stages_of_multiprocessor() > deep.stages_of_multiprocessor() ? flat : deep;
      }
    }();
    if (best.blocks == 0) throw std::runtime_error("CUDA: attention: does not fit the device");
    return best;
  }

 private:
  template <int kStages>
  static Variant variant() {
    constexpr int kBytes = MmaShape<Cached, kHeadSize, kColumnTiles, kStages>::kSharedBytes;
    const auto kernel = attention_mma_kernel<T, Cached, kHeadSize, kColumnTiles, kStages>;
    return {kernel, kBytes, blocks_of_multiprocessor(kernel, kMmaThreads, kBytes), kStages};
  }
};

// Calls body(launcher) with the MmaLauncher of a call.
template <typename T, typename Cached, int kHeadSize, typename Body>
auto with_columns(int columns, const Body& body) {
  if constexpr (kHeadSize <= 128) {
    if (columns == 16) return body(MmaLauncher<T, Cached, kHeadSize, 2>());
  }
  return body(MmaLauncher<T, Cached, kHeadSize, 1>());
}

template <typename T, typename Cached, typename Body>
auto with_launcher(const PagedAttentionParams& p, int columns, const Body& body) {
  switch (p.head_size) {
    case 64:
      return with_columns<T, Cached, 64>(columns, body);
    case 80:
      return with_columns<T, Cached, 80>(columns, body);
    case 96:
      return with_columns<T, Cached, 96>(columns, body);
    case 112:
      return with_columns<T, Cached, 112>(columns, body);
    case 128:
      return with_columns<T, Cached, 128>(columns, body);
    case 192:
      return with_columns<T, Cached, 192>(columns, body);
    case 256:
      return with_columns<T, Cached, 256>(columns, body);
    default:
      dispatch_failed("head size", static_cast<int>(p.head_size));
  }
}

template <typename T, typename Cached>
void attention_mma_of(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream) {
  with_launcher<T, Cached>(p, work.columns, [&](auto launcher) { launcher.run(p, work, stream); });
}

template <typename T, typename Cached>
int attention_mma_blocks_of(const PagedAttentionParams& p, int columns) {
  return with_launcher<T, Cached>(p, columns,
                                  [](auto launcher) { return launcher.blocks_at_once(); });
}

}  // namespace quire::cuda
