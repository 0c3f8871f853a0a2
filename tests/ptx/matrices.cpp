// Matrices that a warp holds: ldmatrix, movmatrix and mma, by the fragments of the PTX manual.
//
// mma adds its products to the accumulator one by one in float32, in ascending order of k, each sum
// rounded to the nearest, as the emulator of tests/emu does. Tensor cores add several at once, with
// operands aligned to the largest and cut off below some bits, and NVIDIA does not document in
// which groups: what they give may differ in the last bits, and from one generation to the next.
// That a result does not depend on the batch holds for either, since it does not depend on the
// order of k.
#include <cstring>

#include "elementwise.h"
#include "memory.h"
#include "number_formats.h"

namespace ptx {
namespace {

constexpr int kRows = 8;  // of a small matrix

// d0.., [row]: matrices of 8 rows of 16 bytes, whose addresses lanes 8 i to 8 i + 7 give for matrix
// i. Lane l gets elements 2 (l % 4) and the next of row l / 4, or of that column if `detail`.
void load_matrices(Warp& warp, const Instruction& instruction, uint32_t) {
  const int count = instruction.num_written;
  uint16_t rows[4][kRows][8];
  uint32_t addresses[kWarpSize];
  const uint32_t* const base = warp.values<uint32_t>(instruction.operands[count]);
  for (int i = 0; i < count * kRows; ++i) {
    addresses[i] = base[i] + static_cast<uint32_t>(instruction.offset);
    // What a row holds goes to several lanes.
    load_shared(warp, i, Toucher::kSeveralLanes, addresses[i], 16, rows[i / kRows][i % kRows]);
  }
  count_wavefronts(addresses, count * kRows, 16, &warp.block().counters());
  for (int matrix = 0; matrix < count; ++matrix) {
    uint32_t* const d = warp.values<uint32_t>(instruction.operands[matrix]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      uint32_t pair = 0;
      for (int i = 0; i < 2; ++i) {
        const int along = lane % 4 * 2 + i;
        const uint16_t element =
            instruction.detail != 0 ? rows[matrix][along][lane / 4] : rows[matrix][lane / 4][along];
        pair |= uint32_t{element} << 16 * i;
      }
      d[lane] = pair;
    }
  }
}

// d, a: the transposed matrix.
void transpose(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  uint32_t pairs[kWarpSize];
  std::memcpy(pairs, warp.values<uint32_t>(instruction.operands[1]), sizeof pairs);
  write<uint32_t>(warp, instruction, lanes, [&](int lane) {
    uint32_t result = 0;
    for (int i = 0; i < 2; ++i) {
      const uint32_t source = pairs[(lane % 4 * 2 + i) * 4 + lane / 4 / 2];
      result |= (lane / 4 % 2 != 0 ? source >> 16 : source & 0xffff) << 16 * i;
    }
    return result;
  });
}

// Operands of mma: d0..3, a0..3, b0..1, c0..3.
constexpr int kA = 4;
constexpr int kB = 8;
constexpr int kC = 10;

struct Bf16 {
  static float of(uint16_t bits) { return from_bf16(bits); }
};
struct F16 {
  static float of(uint16_t bits) { return from_f16(bits); }
};

// m16n8k16, with a by rows and b by columns.
template <typename Half>
void multiply_halves(Warp& warp, const Instruction& instruction, uint32_t) {
  float a[16][16];
  float b[16][8];
  float sums[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = warp.values<uint32_t>(instruction.operands[kA + i])[lane];
      for (int j = 0; j < 2; ++j)
        a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + j] =
            Half::of(static_cast<uint16_t>(pair >> 16 * j));
      sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] =
          warp.values<float>(instruction.operands[kC + i])[lane];
    }
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = warp.values<uint32_t>(instruction.operands[kB + i])[lane];
      for (int j = 0; j < 2; ++j)
        b[lane % 4 * 2 + i * 8 + j][lane / 4] = Half::of(static_cast<uint16_t>(pair >> 16 * j));
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
  for (int i = 0; i < 4; ++i) {
    float* const d = warp.values<float>(instruction.operands[i]);
    for (int lane = 0; lane < kWarpSize; ++lane)
      d[lane] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

// m16n8k32 of int8, exact.
void multiply_bytes(Warp& warp, const Instruction& instruction, uint32_t) {
  int32_t a[16][32];
  int32_t b[32][8];
  uint32_t sums[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const uint32_t four = warp.values<uint32_t>(instruction.operands[kA + i])[lane];
      for (int j = 0; j < 4; ++j)
        a[lane / 4 + i % 2 * 8][lane % 4 * 4 + i / 2 * 16 + j] = static_cast<int8_t>(four >> 8 * j);
      sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] =
          warp.values<uint32_t>(instruction.operands[kC + i])[lane];
    }
    for (int i = 0; i < 2; ++i) {
      const uint32_t four = warp.values<uint32_t>(instruction.operands[kB + i])[lane];
      for (int j = 0; j < 4; ++j)
        b[lane % 4 * 4 + i * 16 + j][lane / 4] = static_cast<int8_t>(four >> 8 * j);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 32; ++k)
      for (int column = 0; column < 8; ++column)
        sums[row][column] += static_cast<uint32_t>(a[row][k] * b[k][column]);
  for (int i = 0; i < 4; ++i) {
    uint32_t* const d = warp.values<uint32_t>(instruction.operands[i]);
    for (int lane = 0; lane < kWarpSize; ++lane)
      d[lane] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

Simple of_mma(Handler run, Type sums) {
  constexpr Type kU32 = Type::kU32;
  return {run,
          {{sums, sums, sums, sums}, {kU32, kU32, kU32, kU32, kU32, kU32, sums, sums, sums, sums}}};
}

}  // namespace

Simple find_matrix(const std::string& name, Instruction* instruction) {
  constexpr Type kU32 = Type::kU32;
  instruction->kind = Instruction::Kind::kAligned;
  if (name == "ldmatrix.sync.aligned.m8n8.x4.shared.b16")
    return {load_matrices, {{kU32, kU32, kU32, kU32}, {kU32}}};
  if (name == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") {
    instruction->detail = 1;
    return {load_matrices, {{kU32, kU32, kU32, kU32}, {kU32}}};
  }
  if (name == "movmatrix.sync.aligned.m8n8.trans.b16") return {transpose, {{kU32}, {kU32}}};
  if (name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
    return of_mma(multiply_halves<Bf16>, Type::kF32);
  if (name == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    return of_mma(multiply_halves<F16>, Type::kF32);
  if (name == "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
    return of_mma(multiply_bytes, Type::kS32);
  instruction->kind = Instruction::Kind::kPlain;
  return {};
}

}  // namespace ptx
