// Mixtures of experts are cut up on the host where layers are computed there: these are a GPU's.
#include "ops/experts.h"

#include "core/check.h"
#include "cpu/cpu_ops.h"

namespace quire::cpu {

void route_experts(const RouteExpertsParams&, const KernelTable&, ThreadPool&) {
  fail("route_experts: must be called with tensors on a GPU");
}
void order_experts(const OrderExpertsParams&, const KernelTable&, ThreadPool&) {
  fail("order_experts: must be called with tensors on a GPU");
}
void expert_linear(const ExpertLinearParams&, const KernelTable&, ThreadPool&) {
  fail("expert_linear: must be called with tensors on a GPU");
}
void weight_only_experts(const WeightOnlyExpertsParams&, const KernelTable&, ThreadPool&) {
  fail("weight_only_experts: must be called with tensors on a GPU");
}
void combine_experts(const CombineExpertsParams&, const KernelTable&, ThreadPool&) {
  fail("combine_experts: must be called with tensors on a GPU");
}

}  // namespace quire::cpu
