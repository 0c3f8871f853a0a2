// The kernels of one kind of device. Every operation is pure virtual, so that a backend that lacks
// one does not compile.
#pragma once

#include <memory>
#include <vector>

#include "core/params.h"

namespace quire {

// How a backend divides the attention of a step, planned once for all of its layers.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  // The blocks of the launch of each layer that computes what sequences share; 0 without one.
  virtual int64_t shared_blocks() const = 0;

  // All that a captured graph has kept of it beside addresses: the sizes of its launches.
  virtual std::vector<int64_t> launches() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // The type that caches may have instead of that of the activations.
  virtual DType quantised_cache_dtype() const = 0;

  // Returns null if the backend plans nothing in advance. The arrays of `params` are in host
  // memory; its tensors give only shapes, strides and types, and block tables only what sequences
  // share. `earlier`, if it is not null, is planned anew in its own memory and returned. A plan
  // with a `max_seq_len` other than 0 is for captured graphs: its steps have at most
  // `params.max_query_len` rows of each sequence, and it keeps its addresses for all lengths up to
  // that one. Of one row each, it keeps the sizes of its launches but for that of what sequences
  // share; of more, its launches are of few sizes.
  virtual std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                                        int64_t max_seq_len,
                                                        std::shared_ptr<AttentionPlan> earlier) = 0;

#define QUIRE_OP(name, Params, ...) virtual void name(const Params& params) = 0;
#include "ops.def"
};

}  // namespace quire
