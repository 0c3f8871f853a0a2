#include "cpu/cpu_backend.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "core/check.h"
#include "cpu/attention_plan.h"
#include "cpu/block_moves.h"
#include "cpu/isa.h"
#include "cpu/logit_rules.h"
#include "cpu/logprobs.h"
#include "cpu/sampler.h"

namespace quire::cpu {
namespace {

const KernelTable& initial_kernels() {
  const char* name = std::getenv("QUIRE_ISA");
  return name == nullptr || *name == '\0' ? *available_kernel_tables().front()
                                          : find_kernel_table(name);
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

}  // namespace

CpuBackend::CpuBackend()
    : kernels_(&initial_kernels()), pool_(std::make_unique<ThreadPool>(usable_cores())) {}

void CpuBackend::reshape_and_cache(const CacheIoParams& params) {
  kernels_->reshape_and_cache(params, *pool_);
}
void CpuBackend::gather_cached_kv(const CacheIoParams& params) {
  kernels_->gather_cached_kv(params, *pool_);
}
void CpuBackend::copy_blocks(const CopyBlocksParams& params) {
  cpu::copy_blocks(params, *pool_);
}
void CpuBackend::swap_blocks(const SwapBlocksParams& params) {
  cpu::swap_blocks(params, *pool_);
}

// Each call plans for itself: that takes a few microseconds.
std::shared_ptr<AttentionPlan> CpuBackend::plan_attention(const PagedAttentionParams&, int64_t,
                                                          std::shared_ptr<AttentionPlan>) {
  return nullptr;
}
void CpuBackend::paged_attention(const PagedAttentionParams& params) {
  const std::vector<AttentionItem> items = cpu::plan_attention(params, pool_->num_threads());
  kernels_->paged_attention(params, items.data(), static_cast<int64_t>(items.size()), *pool_);
}

void CpuBackend::rms_norm(const NormParams& params) {
  kernels_->rms_norm(params, *pool_);
}
void CpuBackend::fused_add_rms_norm(const NormParams& params) {
  kernels_->fused_add_rms_norm(params, *pool_);
}
void CpuBackend::layer_norm(const NormParams& params) {
  kernels_->layer_norm(params, *pool_);
}
void CpuBackend::rotary_embedding(const RotaryParams& params) {
  kernels_->rotary_embedding(params, *pool_);
}
void CpuBackend::rotary_and_cache(const RotaryCacheParams& params) {
  kernels_->rotary_and_cache(params, *pool_);
}
void CpuBackend::activation(const ActivationParams& params) {
  kernels_->activation(params, *pool_);
}
void CpuBackend::linear(const LinearParams&) {
  fail("linear runs on a GPU; on the CPU dense layers are torch's, with packed weights");
}
void CpuBackend::apply_penalties(const PenaltyParams& params) {
  cpu::apply_penalties(params, *pool_);
}
void CpuBackend::apply_token_mask(const TokenMaskParams& params) {
  cpu::apply_token_mask(params, *pool_);
}
void CpuBackend::top_logprobs(const TopLogprobsParams& params) {
  cpu::top_logprobs(params, *kernels_, *pool_);
}
void CpuBackend::sample(const SampleParams& params) {
  cpu::sample(params, *kernels_, *pool_);
}

void CpuBackend::set_isa(const std::string& name) {
  kernels_ = &find_kernel_table(name);
}
void CpuBackend::set_num_threads(int num_threads) {
  pool_ = std::make_unique<ThreadPool>(num_threads);
}

void CpuBackend::advise_huge_pages(void* data, int64_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

uint64_t CpuBackend::stream_read(const void* data, int64_t bytes) {
  return kernels_->stream_read(data, bytes, *pool_);
}

}  // namespace quire::cpu
