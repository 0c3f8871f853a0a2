// Moves of whole blocks: bytes only, so one copy serves every ISA and element type.
#pragma once

#include "core/params.h"
#include "cpu/thread_pool.h"

namespace quire::cpu {

void copy_blocks(const CopyBlocksParams& params, ThreadPool& pool);
void swap_blocks(const SwapBlocksParams& params, ThreadPool& pool);

}  // namespace quire::cpu
