// A backend that runs operations on another one and keeps them, to run them again later.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/check.h"
#include "ops/attention.h"
#include "ops/cache.h"
#include "ops/experts.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/logits.h"
#include "ops/rotary.h"

namespace quire {

// The memory that parameters point to must stay where it is; what operations read there may change
// from one replay to the next. Arguments are checked when they are recorded, and not again.
class Recording final : public Backend {
 public:
  explicit Recording(Backend& backend) : backend_(backend) {}

  DType quantised_cache_dtype() const override { return backend_.quantised_cache_dtype(); }

  std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                                int64_t max_seq_len,
                                                std::shared_ptr<AttentionPlan> earlier) override {
    return backend_.plan_attention(params, max_seq_len, std::move(earlier));
  }

#define QUIRE_OP(name, Params, ...)                                                         \
  void name(const Params& params) override {                                                \
    if (std::is_same_v<Params, CopyBlocksParams>)                                           \
      fail(#name ": must not be recorded, since its parameters point to a list that goes"); \
    backend_.name(params);                                                                  \
    operations_.push_back({#name, [params](Backend& backend) { backend.name(params); }});   \
  }
#include "ops.def"

  void replay() const {
    for (const auto& operation : operations_) operation.run(backend_);
  }

  // The same; returns the seconds of each operation, by name.
  std::map<std::string, double> replay_timed() const {
    using Clock = std::chrono::steady_clock;
    std::map<std::string, double> seconds;
    for (const auto& operation : operations_) {
      const Clock::time_point began = Clock::now();
      operation.run(backend_);
      seconds[operation.name] += std::chrono::duration<double>(Clock::now() - began).count();
    }
    return seconds;
  }

  size_t size() const { return operations_.size(); }

 private:
  struct Operation {
    const char* name;
    std::function<void(Backend&)> run;
  };

  Backend& backend_;
  std::vector<Operation> operations_;
};

}  // namespace quire
