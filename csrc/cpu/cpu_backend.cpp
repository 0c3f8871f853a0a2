#include "cpu/cpu_backend.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "cpu/cpu_ops.h"
#include "cpu/isa.h"

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

// Null: each call of paged_attention divides its own work.
std::shared_ptr<AttentionPlan> CpuBackend::plan_attention(const PagedAttentionParams&, int64_t,
                                                          std::shared_ptr<AttentionPlan>) {
  return nullptr;
}

#define QUIRE_ISA_OP(name, Params, ...)         \
  void CpuBackend::name(const Params& params) { \
    kernels_->name(params, *pool_);             \
  }
#define QUIRE_OP(name, Params, ...)             \
  void CpuBackend::name(const Params& params) { \
    cpu::name(params, *kernels_, *pool_);       \
  }
#include "ops.def"

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
