// The shape of attention of prompts on warpgroups (prompt_warpgroup.cuh): how its operands lie in
// shared memory, and what threads and registers a block has.
#pragma once

#include "cuda/attention/mma_columns.cuh"

namespace quire::cuda {

// Keys, or values, of a stage in shared memory: pieces of 64 elements, in which a token has 128
// bytes whose chunks change places. The number of stages changes no bit.
template <typename T, int kHeadSize>
struct WarpgroupPromptShape {
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  static constexpr int kSteps = kHeadSize / 16;
  static constexpr int kChunks = kHeadSize * kBytes / 16;
  static constexpr bool kSwizzles = true;
  static constexpr int kRowBytes = 128;
  static constexpr int kStepBytes = 16 * kBytes;
  static constexpr int kStepsOfPiece = kRowBytes / kStepBytes;
  static constexpr int kPieces = kHeadSize * kBytes / kRowBytes;
  static_assert(kPieces * kRowBytes == kHeadSize * kBytes);

  static constexpr int kTilesOfStage = 4;
  static constexpr int kStageTokens = kTilesOfStage * kTileTokens;
  static constexpr int kPieceBytes = kStageTokens * kRowBytes;
  static constexpr int kTileBytes = kPieces * kPieceBytes;  // of keys; as many of values follow
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kStages = 4;

  static constexpr int kGroups = 2;  // warpgroups that multiply
  static constexpr int kGroupThreads = 128;
  static constexpr int kGroupColumns = 64;
  static constexpr int kColumns = kGroups * kGroupColumns;
  static constexpr int kMultiplyingThreads = kGroups * kGroupThreads;
  static constexpr int kThreads = kMultiplyingThreads + kGroupThreads;  // the last ones copy
  // Of a thread that copies, and of one that multiplies: what all begin with is shared out anew.
  static constexpr int kCopyingRegisters = 24;
  static constexpr int kMultiplyingRegisters = 240;

  static constexpr int kFours = kHeadSize / 8;  // weighted values of a thread, in fours
  static constexpr int kQueryBytes = kGroupColumns * kHeadSize * kBytes;  // of a warpgroup
  static constexpr int kHeldBytes = kFours * kMultiplyingThreads * static_cast<int>(sizeof(float4));
  static constexpr int kSharedBytes = kStages * kStageBytes + kGroups * kQueryBytes + kHeldBytes;
  static_assert(kGroupColumns == kStageTokens, "queries lie as keys do");

  static __device__ int offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ (row & 7)) * 16;
  }
  static __device__ int behind(int chunk) { return chunk / 8 * kPieceBytes; }
};

}  // namespace quire::cuda
