// What lanes do together without memory: shuffles, votes, matches and sums.
#include "elementwise.h"

namespace ptx {
namespace {

// The last operand of a collective, in which each lane names those that take part with it.
const uint32_t* masks(Warp& warp, const Instruction& instruction) {
  return warp.values<uint32_t>(instruction.operands[instruction.num_operands - 1]);
}

// Calls f(lane, mask) for each lane, whose mask is that of all in it.
template <typename F>
void for_each_lane(Warp& warp, const Instruction& instruction, uint32_t lanes, F&& f) {
  const uint32_t* const all = masks(warp, instruction);
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    for (int other = 0; other < kWarpSize; ++other) {
      const bool is_here = (all[lane] & lanes) >> other & 1;
      if (is_here && all[other] != all[lane])
        warp.fail("lanes of a collective name different lanes", lane);
    }
    f(lane, all[lane]);
  }
}

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

// d[|p], a, b, c, mask: a of the lane that b names, within the segment that c describes.
template <Shuffle kShuffle>
void shuffle(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const int first = instruction.num_written;
  const uint32_t* const a = warp.values<uint32_t>(instruction.operands[first]);
  const uint32_t* const b = warp.values<uint32_t>(instruction.operands[first + 1]);
  const uint32_t* const c = warp.values<uint32_t>(instruction.operands[first + 2]);
  uint32_t results[kWarpSize];
  uint32_t in_range = 0;
  for_each_lane(warp, instruction, lanes, [&](int lane, uint32_t mask) {
    const int by = static_cast<int>(b[lane] & 0x1f);
    const int clamp = static_cast<int>(c[lane] & 0x1f);
    const int segment = static_cast<int>(c[lane] >> 8 & 0x1f);
    const int last = (lane & segment) | (clamp & ~segment);
    int source = lane;
    bool is_valid = true;
    if (kShuffle == Shuffle::kUp) {
      source = lane - by;
      is_valid = source >= last;
    } else {
      if (kShuffle == Shuffle::kDown) source = lane + by;
      if (kShuffle == Shuffle::kButterfly) source = lane ^ by;
      if (kShuffle == Shuffle::kIndex) source = (lane & segment) | (by & ~segment);
      is_valid = source <= last;
    }
    if (!is_valid) source = lane;
    if ((mask >> source & 1) == 0)
      warp.fail("a shuffle from a lane that takes no part in it", lane);
    results[lane] = a[source];
    in_range |= static_cast<uint32_t>(is_valid) << lane;
  });
  write<uint32_t>(warp, instruction, lanes, [&](int lane) { return results[lane]; });
  if (instruction.num_written == 2) {
    uint32_t& predicate = warp.predicate(instruction.operands[1]);
    predicate = (predicate & ~lanes) | (in_range & lanes);
  }
}

// d, p, mask
void ballot(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t votes = warp.predicate(instruction.operands[1]);
  uint32_t* const d = warp.values<uint32_t>(instruction.operands[0]);
  for_each_lane(warp, instruction, lanes, [&](int lane, uint32_t mask) { d[lane] = votes & mask; });
}

template <bool kAll>
void vote(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t votes = warp.predicate(instruction.operands[1]);
  uint32_t result = 0;
  for_each_lane(warp, instruction, lanes, [&](int lane, uint32_t mask) {
    const bool is_true = kAll ? (votes & mask) == mask : (votes & mask) != 0;
    result |= static_cast<uint32_t>(is_true) << lane;
  });
  uint32_t& d = warp.predicate(instruction.operands[0]);
  d = (d & ~lanes) | result;
}

// d, a, mask: the lanes that have the same a.
void match_any(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t* const a = warp.values<uint32_t>(instruction.operands[1]);
  uint32_t results[kWarpSize];
  for_each_lane(warp, instruction, lanes, [&](int lane, uint32_t mask) {
    results[lane] = 0;
    for (int other = 0; other < kWarpSize; ++other) {
      const bool is_same = (mask >> other & 1) != 0 && a[other] == a[lane];
      results[lane] |= static_cast<uint32_t>(is_same) << other;
    }
  });
  write<uint32_t>(warp, instruction, lanes, [&](int lane) { return results[lane]; });
}

// d, a, mask: the sum over the lanes.
void sum(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t* const a = warp.values<uint32_t>(instruction.operands[1]);
  uint32_t results[kWarpSize];
  for_each_lane(warp, instruction, lanes, [&](int lane, uint32_t mask) {
    results[lane] = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) results[lane] += a[__builtin_ctz(rest)];
  });
  write<uint32_t>(warp, instruction, lanes, [&](int lane) { return results[lane]; });
}

Handler find_shuffle(const std::string& mode) {
  if (mode == "up") return shuffle<Shuffle::kUp>;
  if (mode == "down") return shuffle<Shuffle::kDown>;
  if (mode == "bfly") return shuffle<Shuffle::kButterfly>;
  if (mode == "idx") return shuffle<Shuffle::kIndex>;
  return nullptr;
}

}  // namespace

Simple find_collective(const Operation& operation, Type type, Instruction* instruction) {
  const std::string& base = operation.base();
  constexpr Type kU32 = Type::kU32;
  constexpr Type kPred = Type::kPred;
  instruction->kind = Instruction::Kind::kCollective;
  if (operation.has("sync")) {
    if (base == "shfl" && operation.parts.size() == 4) {
      const bool has_predicate = operation.operands[0].find('|') != std::string::npos;
      const std::vector<Type> written =
          has_predicate ? std::vector{kU32, kPred} : std::vector{kU32};
      return {find_shuffle(operation.parts[2]), {written, {kU32, kU32, kU32, kU32}}};
    }
    if (base == "vote" && operation.has("ballot")) return {ballot, {{kU32}, {kPred, kU32}}};
    if (base == "vote" && operation.has("any")) return {vote<false>, {{kPred}, {kPred, kU32}}};
    if (base == "vote" && operation.has("all")) return {vote<true>, {{kPred}, {kPred, kU32}}};
    if (base == "match" && operation.has("any") && size_of(type) == 4)
      return {match_any, {{kU32}, {kU32, kU32}}};
    if (base == "redux" && operation.has("add")) return {sum, {{kU32}, {kU32, kU32}}};
  }
  instruction->kind = Instruction::Kind::kPlain;
  return {};
}

}  // namespace ptx
