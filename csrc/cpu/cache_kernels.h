// Moves of keys and values: bytes only, so one copy serves every ISA and element type.
#pragma once

#include "cpu/thread_pool.h"
#include "params.h"

namespace quire::cpu {

void reshape_and_cache(const CacheIoParams& params, ThreadPool& pool);
void gather_cached_kv(const CacheIoParams& params, ThreadPool& pool);
void copy_blocks(const CopyBlocksParams& params, ThreadPool& pool);
void swap_blocks(const SwapBlocksParams& params, ThreadPool& pool);

}  // namespace quire::cpu
