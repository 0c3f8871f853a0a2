// Writes keys and values to their slots of the cache and reads them back; rotates keys on the way
// for models that do so.
#pragma once

#include "cpu/kernels/int8_rows.h"
#include "cpu/kernels/rotary.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <typename T>
inline T* row_address(const RowsView& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

// Head 0 of a slot.
template <typename T>
inline T* slot_address(const CacheIoParams& p, const CacheView& cache, int64_t slot) {
  return static_cast<T*>(cache.data) + slot / p.block_size * cache.block_stride +
         slot % p.block_size * cache.token_stride;
}

// Calls body(row, cached) with the addresses of each head of a token.
template <typename T, typename Cached, typename Body>
inline void for_each_head(const CacheIoParams& p, const RowsView& rows, const CacheView& cache,
                          int64_t token, const Body& body) {
  Cached* slot = slot_address<Cached>(p, cache, p.slot_mapping[token]);
  for (int64_t head = 0; head < p.num_kv_heads; ++head)
    body(row_address<T>(rows, token, head), slot + head * cache.head_stride);
}

// Calls body(row, cached) for each head of the keys, and of the values if there are any, that have
// a slot.
template <typename T, typename Cached, typename Body>
void for_each_row(const CacheIoParams& p, ThreadPool& pool, const Body& body) {
  const int64_t bytes = 4 * p.num_kv_heads * p.head_size * static_cast<int64_t>(sizeof(T));
  parallel_rows(pool, p.num_tokens, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      if (p.slot_mapping[token] < 0) continue;  // padding
      for_each_head<T, Cached>(p, p.key, p.key_cache, token, body);
      if (p.value.data != nullptr) for_each_head<T, Cached>(p, p.value, p.value_cache, token, body);
    }
  });
}

template <typename T>
inline void write_row(const T* row, T* cached, int64_t head_size) {
  memcpy(cached, row, head_size * sizeof(T));
}
template <typename T>
inline void write_row(const T* row, int8_t* cached, int64_t head_size) {
  quantise_row(row, cached, head_size);
}

template <typename T>
inline void read_row(const T* cached, T* row, int64_t head_size) {
  memcpy(row, cached, head_size * sizeof(T));
}
template <typename T>
inline void read_row(const int8_t* cached, T* row, int64_t head_size) {
  dequantise_row(cached, row, head_size);
}

#define QUIRE_DISPATCH_CPU_CACHE(io, T, Cached, ...)                         \
  QUIRE_DISPATCH_DTYPE((io).dtype, T,                                        \
                       QUIRE_DISPATCH_CACHE((io).cache_dtype, (io).dtype, T, \
                                            ::quire::DType::kInt8, int8_t, Cached, __VA_ARGS__))

void reshape_and_cache(const CacheIoParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_CPU_CACHE(p, T, Cached,
                           for_each_row<T, Cached>(p, pool, [&](const T* row, Cached* cached) {
                             write_row(row, cached, p.head_size);
                           }));
}

void gather_cached_kv(const CacheIoParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_CPU_CACHE(p, T, Cached,
                           for_each_row<T, Cached>(p, pool, [&](T* row, const Cached* cached) {
                             read_row(cached, row, p.head_size);
                           }));
}

template <typename T>
inline void write_rotated(const RotaryCacheParams& p, int64_t token, const T* row, T* cached) {
  write_row(row, cached, p.cache.head_size);
  rotate_head(p.rotary, cached, token);
}
template <typename T>
inline void write_rotated(const RotaryCacheParams& p, int64_t token, const T* row, int8_t* cached) {
  T rotated[kMaxQuantisedHeadSize];
  memcpy(rotated, row, p.cache.head_size * sizeof(T));
  rotate_head(p.rotary, rotated, token);
  quantise_row(rotated, cached, p.cache.head_size);
}

// Rotates a token's queries in place and writes its keys and values to its slot if it has one.
template <typename T, typename Cached>
inline void rotate_and_cache_token(const RotaryCacheParams& p, int64_t token) {
  const CacheIoParams& io = p.cache;
  rotate_token<T>(p.rotary, p.rotary.query, p.rotary.num_heads, token);
  if (token >= io.num_tokens || io.slot_mapping[token] < 0) return;
  for_each_head<T, Cached>(io, io.key, io.key_cache, token, [&](const T* row, Cached* cached) {
    write_rotated(p, token, row, cached);
  });
  for_each_head<T, Cached>(io, io.value, io.value_cache, token, [&](const T* row, Cached* cached) {
    write_row(row, cached, io.head_size);
  });
}

void rotary_and_cache(const RotaryCacheParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_CPU_CACHE(p.cache, T, Cached, {
    const int64_t elements = 2 * (p.rotary.num_heads * p.rotary.rotary_dim +
                                  2 * p.cache.num_kv_heads * p.cache.head_size);
    parallel_rows(pool, p.rotary.num_tokens, elements * static_cast<int64_t>(sizeof(T)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t token = begin; token < end; ++token)
                      rotate_and_cache_token<T, Cached>(p, token);
                  });
  });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
