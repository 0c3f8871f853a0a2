// Holds the caches that the field began with, and decode in one kernel over them, against plain
// loops, in the emulator, in each order of turns. Mutants of the kernels are compiled with this
// (test_seed_mutants.py): exits with 0 if they agree, 1 if not, 2 if a kernel did what no GPU
// allows.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "seed/cache_v1.cu"
#include "seed/fused_decode.cu"

namespace quire::cuda {

cudaStream_t current_stream() {
  return nullptr;
}

namespace {

constexpr int kBlockSize = 16;
constexpr int kHeadSize = 64;
constexpr int kRotaryDim = 48;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kRows = kHeads + 2 * kKvHeads;
constexpr int kTableWidth = 8;
// The first token, one that begins a block, one that fills a block, and some blocks.
constexpr int kLengths[] = {1, 17, 32, 107};
constexpr int kSequences = 4;
constexpr int kBlocks = 1 + kSequences * kTableWidth;  // no sequence has block 0
constexpr float kScale = 0.125f;

template <typename T>
struct Problem {
  std::vector<int32_t> lengths{std::begin(kLengths), std::end(kLengths)};
  std::vector<int32_t> tables;
  std::vector<T> qkv, bias, keys, values, key_cache, value_cache, out;
  std::vector<int64_t> slots;
  std::vector<float> angles;

  Problem() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<T>& numbers, size_t count) {
      for (size_t i = 0; i < count; ++i) numbers.push_back(from_float<T>(normal(random)));
    };
    fill(qkv, size_t(kSequences) * kRows * kHeadSize);
    fill(bias, size_t(kRows) * kHeadSize);
    for (int i = 0; i < kSequences * kTableWidth; ++i) tables.push_back(1 + i * 5 % (kBlocks - 1));
    for (int seq = 0; seq < kSequences; ++seq)
      for (int token = 0; token < kLengths[seq] - 1; ++token) slots.push_back(slot(seq, token));
    slots.push_back(-1);  // padding
    fill(keys, slots.size() * kKvHeads * kHeadSize);
    fill(values, slots.size() * kKvHeads * kHeadSize);
    for (int i = 0; i < 128 * kRotaryDim; ++i) {
      const float angle = static_cast<float>(i / kRotaryDim * (i % (kRotaryDim / 2) + 1)) * 0.07f;
      angles.push_back(i % kRotaryDim < kRotaryDim / 2 ? std::cos(angle) : std::sin(angle));
    }
    const T nan = from_float<T>(std::numeric_limits<float>::quiet_NaN());
    key_cache.assign(size_t(kBlocks) * kKvHeads * kBlockSize * kHeadSize, nan);
    value_cache = key_cache;
    out.assign(size_t(kSequences) * kHeads * kHeadSize, nan);
  }

  int64_t slot(int seq, int token) const {
    return int64_t{tables[seq * kTableWidth + token / kBlockSize]} * kBlockSize +
           token % kBlockSize;
  }

  void put(int64_t slot, int head, int d, T key, T value) {
    constexpr int kX = 16 / sizeof(T);
    const int64_t begin = (slot / kBlockSize * kKvHeads + head) * kBlockSize * kHeadSize;
    key_cache[begin + (d / kX * kBlockSize + slot % kBlockSize) * kX + d % kX] = key;
    value_cache[begin + d * kBlockSize + slot % kBlockSize] = value;
  }

  SeedCacheParams cache_params(std::vector<T>& key_rows, std::vector<T>& value_rows) {
    SeedCacheParams p{};
    p.key = {key_rows.data(), kKvHeads * kHeadSize, kHeadSize};
    p.value = {value_rows.data(), kKvHeads * kHeadSize, kHeadSize};
    p.key_cache = key_cache.data();
    p.value_cache = value_cache.data();
    p.slot_mapping = slots.data();
    p.block_stride = kKvHeads * kBlockSize * kHeadSize;
    p.head_stride = kBlockSize * kHeadSize;
    p.num_tokens = static_cast<int64_t>(slots.size());
    p.num_kv_heads = kKvHeads;
    p.head_size = kHeadSize;
    p.block_size = kBlockSize;
    p.dtype = dtype();
    return p;
  }

  FusedDecodeParams decode_params(bool is_neox) {
    FusedDecodeParams p{};
    SeedAttentionParams& a = p.attention;
    a.out = out.data();
    a.query = qkv.data();
    a.key_cache = key_cache.data();
    a.value_cache = value_cache.data();
    a.block_tables = tables.data();
    a.seq_lens = lengths.data();
    a.out_stride = kHeads * kHeadSize;
    a.query_stride = kRows * kHeadSize;
    a.block_stride = kKvHeads * kBlockSize * kHeadSize;
    a.head_stride = kBlockSize * kHeadSize;
    a.block_table_stride = kTableWidth;
    a.num_seqs = kSequences;
    a.num_heads = kHeads;
    a.num_kv_heads = kKvHeads;
    a.head_size = kHeadSize;
    a.block_size = kBlockSize;
    a.max_seq_len = 107;
    a.scale = kScale;
    a.dtype = dtype();
    p.bias = bias.data();
    p.cos_sin_cache = angles.data();
    p.cos_sin_stride = kRotaryDim;
    p.rotary_dim = kRotaryDim;
    p.is_neox = is_neox;
    return p;
  }

  static DType dtype() { return sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat16; }

  // A row of the projection with its bias, rotated.
  std::vector<T> row(int seq, int head, int rotary_dim, bool is_neox) const {
    std::vector<float> x(kHeadSize);
    for (int d = 0; d < kHeadSize; ++d)
      x[d] = to_float(qkv[(seq * kRows + head) * kHeadSize + d]) +
             to_float(bias[head * kHeadSize + d]);
    const float* cosines = angles.data() + (kLengths[seq] - 1) * kRotaryDim;
    const int half = rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
      float& a = x[is_neox ? i : 2 * i];
      float& b = x[is_neox ? i + half : 2 * i + 1];
      const float before = a;
      a = a * cosines[i] - b * cosines[half + i];
      b = b * cosines[i] + before * cosines[half + i];
    }
    std::vector<T> rounded;
    for (const float each : x) rounded.push_back(from_float<T>(each));
    return rounded;
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// What attention gives for a head, by the caches; elements that are off.
template <typename T>
int count_wrong(const Problem<T>& problem, const Problem<T>& expected, int seq, int head,
                const std::vector<T>& query) {
  constexpr int kX = 16 / sizeof(T);
  std::vector<double> weights, sums(kHeadSize, 0.0);
  double total = 0;
  const int64_t of_head = int64_t{head / (kHeads / kKvHeads)} * kBlockSize * kHeadSize;
  for (int token = 0; token < kLengths[seq]; ++token) {
    const int64_t slot = expected.slot(seq, token);
    const int64_t begin = slot / kBlockSize * kKvHeads * kBlockSize * kHeadSize + of_head;
    double dot = 0;
    for (int d = 0; d < kHeadSize; ++d) {
      const int64_t at = begin + (d / kX * kBlockSize + slot % kBlockSize) * kX + d % kX;
      dot += double{to_float(query[d])} * to_float(expected.key_cache[at]);
    }
    const double weight = std::exp(dot * kScale);
    total += weight;
    for (int d = 0; d < kHeadSize; ++d) {
      const int64_t at = begin + d * kBlockSize + slot % kBlockSize;
      sums[d] += weight * to_float(expected.value_cache[at]);
    }
  }
  int wrong = 0;
  const double allowed = sizeof(T) == 4 ? 1e-5 : 1e-2;
  for (int d = 0; d < kHeadSize; ++d) {
    const float actual = to_float(problem.out[(seq * kHeads + head) * kHeadSize + d]);
    if (!(std::abs(actual - sums[d] / total) <= allowed)) ++wrong;
  }
  return wrong;
}

template <typename T>
bool agrees(bool is_neox) {
  Problem<T> problem;
  Problem<T> expected;
  for (size_t row = 0; row + 1 < problem.slots.size(); ++row) {
    for (int head = 0; head < kKvHeads; ++head) {
      for (int d = 0; d < kHeadSize; ++d) {
        const size_t at = (row * kKvHeads + head) * kHeadSize + d;
        expected.put(problem.slots[row], head, d, problem.keys[at], problem.values[at]);
      }
    }
  }
  seed_reshape_and_cache(problem.cache_params(problem.keys, problem.values));
  if (!same_bits(problem.key_cache, expected.key_cache)) return false;
  if (!same_bits(problem.value_cache, expected.value_cache)) return false;

  // The row of padding stays as it is.
  std::vector<T> keys = problem.keys;
  std::vector<T> values = problem.values;
  for (size_t i = 0; i < (problem.slots.size() - 1) * kKvHeads * kHeadSize; ++i)
    keys[i] = values[i] = from_float<T>(9.f);
  seed_gather_cached_kv(problem.cache_params(keys, values));
  if (!same_bits(keys, problem.keys) || !same_bits(values, problem.values)) return false;

  fused_decode(problem.decode_params(is_neox));
  for (int seq = 0; seq < kSequences; ++seq) {
    for (int head = 0; head < kKvHeads; ++head) {
      const std::vector<T> key = problem.row(seq, kHeads + head, kRotaryDim, is_neox);
      const std::vector<T> value = problem.row(seq, kHeads + kKvHeads + head, 0, is_neox);
      for (int d = 0; d < kHeadSize; ++d)
        expected.put(expected.slot(seq, kLengths[seq] - 1), head, d, key[d], value[d]);
    }
  }
  if (!same_bits(problem.key_cache, expected.key_cache)) return false;
  if (!same_bits(problem.value_cache, expected.value_cache)) return false;
  int wrong = 0;
  for (int seq = 0; seq < kSequences; ++seq) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<T> query = problem.row(seq, head, kRotaryDim, is_neox);
      wrong += count_wrong(problem, expected, seq, head, query);
    }
  }
  return wrong == 0;
}

}  // namespace
}  // namespace quire::cuda

int main() {
  for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
    emu::Machine::order = order;
    for (const bool is_neox : {true, false}) {
      try {
        if (quire::cuda::agrees<float>(is_neox) && quire::cuda::agrees<__half>(is_neox)) continue;
      } catch (const emu::KernelError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
      }
      std::fprintf(stderr, "differs: order %d, neox %d\n", int(order), int(is_neox));
      return 1;
    }
  }
  return 0;
}
