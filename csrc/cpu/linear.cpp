// What dense layers need that is the same on every instruction set.
#include "ops/linear.h"

#include <cstring>

#include "core/check.h"
#include "cpu/cpu_ops.h"

namespace quire::cpu {
namespace {

// Where element k of a feature of a panel lies, in elements. The pairs of bf16 are neighbours, as
// the instruction that multiplies them wants.
int64_t place_of(int64_t feature, int64_t k, DType dtype) {
  const int64_t pair = k / 2 * 2 * kPanelFeatures;
  return dtype == DType::kBFloat16 ? pair + 2 * feature + k % 2
                                   : pair + k % 2 * kPanelFeatures + feature;
}

template <typename Bits>
void pack_panel(const PackWeightParams& p, int64_t panel) {
  const int64_t size = (p.in_features + 1) / 2 * 2 * kPanelFeatures;
  Bits* packed = static_cast<Bits*>(p.packed) + panel * size;
  std::memset(packed, 0, size * sizeof(Bits));
  for (int64_t feature = 0; feature < kPanelFeatures; ++feature) {
    const int64_t row = panel * kPanelFeatures + feature;
    if (row >= p.out_features) break;
    const Bits* weight = static_cast<const Bits*>(p.weight) + row * p.weight_stride;
    for (int64_t k = 0; k < p.in_features; ++k) packed[place_of(feature, k, p.dtype)] = weight[k];
  }
}

}  // namespace

void pack_weight(const PackWeightParams& p, const KernelTable&, ThreadPool& pool) {
  const int64_t panels = (p.out_features + kPanelFeatures - 1) / kPanelFeatures;
  pool.run(
      panels,
      [](void* context, int64_t panel, int) {
        const auto& params = *static_cast<const PackWeightParams*>(context);
        if (params.dtype == DType::kFloat32) {
          pack_panel<uint32_t>(params, panel);
        } else {
          pack_panel<uint16_t>(params, panel);
        }
      },
      const_cast<PackWeightParams*>(&p));
}

void linear(const LinearParams&, const KernelTable&, ThreadPool&) {
  fail("linear: must be called with tensors on a GPU; on the CPU packed_linear computes it");
}

void head_linear(const HeadLinearParams&, const KernelTable&, ThreadPool&) {
  fail(
      "head_linear: must be called with tensors on a GPU; on the CPU packed_head_linear computes "
      "it");
}

void weight_only_linear(const WeightOnlyLinearParams&, const KernelTable&, ThreadPool&) {
  fail(
      "weight_only_linear: must be called with tensors on a GPU; on the CPU grouped_linear "
      "computes "
      "it");
}

}  // namespace quire::cpu
