// Paged attention: on tensor cores by a plan of the step, or by the plain kernel.
#include <utility>
#include <vector>

#include "cuda/attention/common.h"
#include "cuda/cuda_ops.h"

namespace quire::cuda {
namespace {

// Returns a device array's values once the stream has done its work on them.
std::vector<int32_t> fetch(const int32_t* device, int64_t count, cudaStream_t stream) {
  std::vector<int32_t> host(static_cast<size_t>(count));
  check(cudaMemcpyAsync(host.data(), device, host.size() * sizeof(int32_t), cudaMemcpyDefault,
                        stream),
        "fetch");
  check(cudaStreamSynchronize(stream), "fetch");
  return host;
}

bool has_plan(const PagedAttentionParams& p) {
  return attention_mma_serves(p) || attention_latent_serves(p);
}

void run_plan(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  if (attention_latent_serves(p)) {
    for (const DeviceWork* work : {&plan.few(), &plan.many()})
      if (work->num_items != 0) attention_latent(p, *work, stream);
    return;
  }
  if (plan.shared().num_items != 0) attention_shared(p, plan.shared(), stream);
  attention_mma(p, plan.few(), stream);
  if (plan.many().num_items != 0) attention_prompt(p, plan.many(), stream);
}

}  // namespace

std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& p, int64_t max_seq_len,
                                              std::shared_ptr<AttentionPlan> earlier,
                                              cudaStream_t stream) {
  if (!has_plan(p)) return nullptr;
  auto plan = std::static_pointer_cast<DevicePlan>(std::move(earlier));
  if (plan == nullptr) plan = std::make_shared<DevicePlan>();
  // A stated length fixes the sizes of launches, for a step that a graph replays.
  if (max_seq_len == 0) {
    plan->make(p, p.seq_lens, p.query_start_loc, stream);
  } else {
    plan->make_fixed(p, p.seq_lens, p.query_start_loc, max_seq_len, stream);
  }
  return plan;
}

void paged_attention(const PagedAttentionParams& p, cudaStream_t stream) {
  if (!has_plan(p)) {
    attention_plain(p, stream);
  } else if (p.plan != nullptr) {
    run_plan(p, *static_cast<const DevicePlan*>(p.plan), stream);
  } else {
    const std::vector<int32_t> seq_lens = fetch(p.seq_lens, p.num_seqs, stream);
    const std::vector<int32_t> query_start_loc = fetch(p.query_start_loc, p.num_seqs + 1, stream);
    DevicePlan& plan = of_stream<DevicePlan>(stream);
    PagedAttentionParams of_plan = p;
    of_plan.block_tables = nullptr;  // a plan's are in host memory
    plan.make(of_plan, seq_lens.data(), query_start_loc.data(), stream);
    run_plan(p, plan, stream);
  }
}

}  // namespace quire::cuda
