// Moves, comparisons, selections, and arithmetic of predicates.
#include <cmath>
#include <cstring>

#include "elementwise.h"

namespace ptx {
namespace {

// ---------------------------------------------------------------- moves

template <typename T>
struct Same {
  static T of(T a) { return a; }
};

template <typename Whole, typename Part>
void pack(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  write<Whole>(warp, instruction, lanes, [&](int lane) {
    Part parts[kParts];
    for (int i = 0; i < kParts; ++i)
      parts[i] = warp.values<Part>(instruction.operands[i + 1])[lane];
    Whole whole;
    std::memcpy(&whole, parts, sizeof whole);
    return whole;
  });
}

template <typename Whole, typename Part>
void unpack(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  const Whole* const from = warp.values<Whole>(instruction.operands[kParts]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Part parts[kParts];
    std::memcpy(parts, &from[lane], sizeof parts);
    for (int i = 0; i < kParts; ++i) warp.values<Part>(instruction.operands[i])[lane] = parts[i];
  }
}

bool is_vector(const std::string& operand) {
  return operand[0] == '{';
}

Simple find_move(const Operation& operation, Type type) {
  const bool packs = is_vector(operation.operands[1]);
  const bool unpacks = is_vector(operation.operands[0]);
  constexpr Type kU16 = Type::kU16;
  constexpr Type kU32 = Type::kU32;
  constexpr Type kU64 = Type::kU64;
  if (type == kU32 && packs) return {pack<uint32_t, uint16_t>, {{kU32}, {kU16, kU16}}};
  if (type == kU64 && packs) return {pack<uint64_t, uint32_t>, {{kU64}, {kU32, kU32}}};
  if (type == kU32 && unpacks) return {unpack<uint32_t, uint16_t>, {{kU16, kU16}, {kU32}}};
  if (type == kU64 && unpacks) return {unpack<uint64_t, uint32_t>, {{kU32, kU32}, {kU64}}};
  switch (size_of(type)) {
    case 2:
      return make_unary<uint16_t, uint16_t, Same<uint16_t>>();
    case 4:
      return {unary<uint32_t, uint32_t, Same<uint32_t>>, {{type}, {type}}};
    case 8:
      return {unary<uint64_t, uint64_t, Same<uint64_t>>, {{type}, {type}}};
    default:
      return {};
  }
}

// ---------------------------------------------------------------- predicates

void write_predicate(Warp& warp, uint16_t number, uint32_t lanes, uint32_t value) {
  uint32_t& predicate = warp.predicate(number);
  predicate = (predicate & ~lanes) | (value & lanes);
}

template <typename F>
void combine(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t a = warp.predicate(instruction.operands[1]);
  const uint32_t b = warp.predicate(instruction.operands[instruction.num_operands - 1]);
  write_predicate(warp, instruction.operands[0], lanes, F::of(a, b));
}

struct Both {
  static uint32_t of(uint32_t a, uint32_t b) { return a & b; }
};
struct Either {
  static uint32_t of(uint32_t a, uint32_t b) { return a | b; }
};
struct OneOf {
  static uint32_t of(uint32_t a, uint32_t b) { return a ^ b; }
};
struct Inverse {
  static uint32_t of(uint32_t a, uint32_t) { return ~a; }
};
struct Copy {
  static uint32_t of(uint32_t a, uint32_t) { return a; }
};

Simple find_of_predicates(const std::string& base) {
  constexpr Type kPred = Type::kPred;
  const Signature of_two = {{kPred}, {kPred, kPred}};
  const Signature of_one = {{kPred}, {kPred}};
  if (base == "and") return {combine<Both>, of_two};
  if (base == "or") return {combine<Either>, of_two};
  if (base == "xor") return {combine<OneOf>, of_two};
  if (base == "not") return {combine<Inverse>, of_one};
  if (base == "mov") return {combine<Copy>, of_one};
  return {};
}

// ---------------------------------------------------------------- comparisons

struct Equal {
  template <typename T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct Less {
  template <typename T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct LessOrEqual {
  template <typename T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
template <typename F>
struct Swapped {
  template <typename T>
  static bool of(T a, T b) {
    return F::of(b, a);
  }
};
// Also true where one is NaN: the opposite of the opposite comparison.
template <typename F>
struct Opposite {
  template <typename T>
  static bool of(T a, T b) {
    return !F::of(a, b);
  }
};
// False where one is NaN.
struct Different {
  template <typename T>
  static bool of(T a, T b) {
    return a < b || b < a;
  }
};

template <typename T, typename F>
void compare(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const T* const a = warp.values<T>(instruction.operands[1]);
  const T* const b = warp.values<T>(instruction.operands[2]);
  uint32_t result = 0;
  for (int lane = 0; lane < kWarpSize; ++lane)
    result |= static_cast<uint32_t>(F::of(a[lane], b[lane])) << lane;
  write_predicate(warp, instruction.operands[0], lanes, result);
}

template <typename T>
Handler find_comparison(const std::string& name) {
  using Greater = Swapped<Less>;
  using GreaterOrEqual = Swapped<LessOrEqual>;
  if (name == "eq") return compare<T, Equal>;
  if (name == "ne") return compare<T, Different>;
  if (name == "lt" || name == "lo") return compare<T, Less>;
  if (name == "le" || name == "ls") return compare<T, LessOrEqual>;
  if (name == "gt" || name == "hi") return compare<T, Greater>;
  if (name == "ge" || name == "hs") return compare<T, GreaterOrEqual>;
  if (name == "equ") return compare<T, Opposite<Different>>;
  if (name == "neu") return compare<T, Opposite<Equal>>;
  if (name == "ltu") return compare<T, Opposite<GreaterOrEqual>>;
  if (name == "leu") return compare<T, Opposite<Greater>>;
  if (name == "gtu") return compare<T, Opposite<LessOrEqual>>;
  if (name == "geu") return compare<T, Opposite<Less>>;
  return nullptr;
}

Handler find_comparison_of(const std::string& name, Type type) {
  switch (type) {
    case Type::kU16:
      return find_comparison<uint16_t>(name);
    case Type::kS16:
      return find_comparison<int16_t>(name);
    case Type::kU32:
      return find_comparison<uint32_t>(name);
    case Type::kS32:
      return find_comparison<int32_t>(name);
    case Type::kF32:
      return find_comparison<float>(name);
    case Type::kU64:
      return find_comparison<uint64_t>(name);
    case Type::kS64:
      return find_comparison<int64_t>(name);
    case Type::kF64:
      return find_comparison<double>(name);
    default:
      return nullptr;
  }
}

// ---------------------------------------------------------------- selections

template <typename T>
void select(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const T* const a = warp.values<T>(instruction.operands[1]);
  const T* const b = warp.values<T>(instruction.operands[2]);
  const uint32_t chosen = warp.predicate(instruction.operands[3]);
  write<T>(warp, instruction, lanes,
           [&](int lane) { return (chosen >> lane & 1) != 0 ? a[lane] : b[lane]; });
}

Handler find_selection(Type type) {
  switch (size_of(type)) {
    case 2:
      return select<uint16_t>;
    case 4:
      return select<uint32_t>;
    case 8:
      return select<uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

Simple find_logic(const Operation& operation, Type type) {
  const std::string& base = operation.base();
  if (type == Type::kPred && base != "setp") return find_of_predicates(base);
  if (base == "mov") return find_move(operation, type);
  // "setp.lt.f32", but none that combines its result with a predicate.
  if (base == "setp" && operation.parts.size() == 3)
    return {find_comparison_of(operation.parts[1], type), {{Type::kPred}, {type, type}}};
  if (base == "selp") return {find_selection(type), {{type}, {type, type, Type::kPred}}};
  return {};
}

}  // namespace ptx
