// Changes logits before a token is drawn from them.
#pragma once

#include "core/params.h"
#include "cpu/thread_pool.h"

namespace quire::cpu {

void apply_penalties(const PenaltyParams& params, ThreadPool& pool);
void apply_token_mask(const TokenMaskParams& params, ThreadPool& pool);

}  // namespace quire::cpu
