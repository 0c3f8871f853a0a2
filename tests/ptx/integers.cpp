// Arithmetic and bits of integers.
#include <limits>
#include <type_traits>

#include "elementwise.h"

namespace ptx {
namespace {

// Two's complement, without the undefined behaviour of C++'s overflows.
template <typename T>
using Unsigned = std::make_unsigned_t<T>;

template <typename T>
T wrapped(uint64_t x) {
  return static_cast<T>(x);
}

// The product's type, twice as wide.
template <typename T>
struct Wide;
template <>
struct Wide<uint16_t> {
  using Of = uint32_t;
};
template <>
struct Wide<int16_t> {
  using Of = int32_t;
};
template <>
struct Wide<uint32_t> {
  using Of = uint64_t;
};
template <>
struct Wide<int32_t> {
  using Of = int64_t;
};
template <>
struct Wide<uint64_t> {
  using Of = unsigned __int128;
};
template <>
struct Wide<int64_t> {
  using Of = __int128;
};

template <typename T>
struct Add {
  static T of(T a, T b) { return wrapped<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
};
template <typename T>
struct Subtract {
  static T of(T a, T b) { return wrapped<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); }
};
template <typename T>
struct MultiplyLow {
  static T of(T a, T b) { return wrapped<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
};
template <typename T>
struct MultiplyHigh {
  static T of(T a, T b) {
    using Product = typename Wide<T>::Of;
    return static_cast<T>((static_cast<Product>(a) * static_cast<Product>(b)) >> 8 * sizeof(T));
  }
};
template <typename T>
struct MultiplyWide {
  using D = typename Wide<T>::Of;
  static D of(T a, T b) { return static_cast<D>(a) * static_cast<D>(b); }
};
template <typename T>
struct MultiplyLowAdd {
  static T of(T a, T b, T c) { return Add<T>::of(MultiplyLow<T>::of(a, b), c); }
};
template <typename T>
struct MultiplyHighAdd {
  static T of(T a, T b, T c) { return Add<T>::of(MultiplyHigh<T>::of(a, b), c); }
};
template <typename T>
struct MultiplyWideAdd {
  using D = typename Wide<T>::Of;
  static D of(T a, T b, D c) { return Add<D>::of(MultiplyWide<T>::of(a, b), c); }
};
// Of a division by zero the manual leaves the result open: all bits set, as today's machines do.
template <typename T>
struct Divide {
  static T of(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract<T>::of(0, a);
    return static_cast<T>(a / b);
  }
};
template <typename T>
struct Remainder {
  static T of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
template <typename T>
struct Minimum {
  static T of(T a, T b) { return a < b ? a : b; }
};
template <typename T>
struct Maximum {
  static T of(T a, T b) { return a > b ? a : b; }
};
template <typename T>
struct Negate {
  static T of(T a) { return Subtract<T>::of(0, a); }
};
template <typename T>
struct Absolute {
  static T of(T a) { return a < 0 ? Negate<T>::of(a) : a; }
};
template <typename T>
struct And {
  static T of(T a, T b) { return a & b; }
};
template <typename T>
struct Or {
  static T of(T a, T b) { return a | b; }
};
template <typename T>
struct Xor {
  static T of(T a, T b) { return a ^ b; }
};
template <typename T>
struct Not {
  static T of(T a) { return static_cast<T>(~a); }
};
// A shift by more than the width shifts all out.
template <typename T>
struct ShiftLeft {
  static T of(T a, uint32_t by) {
    return by >= 8 * sizeof(T) ? T{0} : wrapped<T>(static_cast<uint64_t>(a) << by);
  }
};
template <typename T>
struct ShiftRight {
  static T of(T a, uint32_t by) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    if (by < kBits) return static_cast<T>(a >> by);
    return std::is_signed_v<T> ? static_cast<T>(a >> (kBits - 1)) : T{0};
  }
};
struct CountOnes {
  static uint32_t of(uint32_t a) { return static_cast<uint32_t>(__builtin_popcount(a)); }
};
struct ReverseBits {
  static uint32_t of(uint32_t a) {
    uint32_t reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (a >> i & 1) << (31 - i);
    return reversed;
  }
};
// How far the highest bit is from the left; all bits set if there is none.
struct LeadingShift {
  static uint32_t of(uint32_t a) { return a == 0 ? ~0u : static_cast<uint32_t>(__builtin_clz(a)); }
};
struct HighestBit {
  static uint32_t of(uint32_t a) { return a == 0 ? ~0u : 31u - LeadingShift::of(a); }
};
// Byte i of the result is the one that nibble i of the selector counts in a and then b; its highest
// bit in all eight if the nibble's is set.
struct Permute {
  static uint32_t of(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = uint64_t{b} << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibble = selector >> 4 * i & 0xf;
      auto byte = static_cast<uint32_t>(bytes >> 8 * (nibble & 7) & 0xff);
      if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << 8 * i;
    }
    return result;
  }
};

// d = b with `length` bits of a put in from bit `position` on.
template <typename T>
void insert_bits(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const T* const a = warp.values<T>(instruction.operands[1]);
  const T* const b = warp.values<T>(instruction.operands[2]);
  const auto* const positions = warp.values<uint32_t>(instruction.operands[3]);
  const auto* const lengths = warp.values<uint32_t>(instruction.operands[4]);
  write<T>(warp, instruction, lanes, [&](int lane) {
    const uint32_t position = positions[lane] & 0xff;
    const uint32_t length = lengths[lane] & 0xff;
    if (position >= kBits || length == 0) return b[lane];
    const T ones = length >= kBits ? ~T{0} : (T{1} << length) - 1;
    const T mask = ones << position;
    return (b[lane] & ~mask) | (a[lane] << position & mask);
  });
}

template <typename T>
Simple find_of(const Operation& operation) {
  const std::string& base = operation.base();
  if (base == "add") return make_binary<T, T, T, Add<T>>();
  if (base == "sub") return make_binary<T, T, T, Subtract<T>>();
  if (base == "div") return make_binary<T, T, T, Divide<T>>();
  if (base == "rem") return make_binary<T, T, T, Remainder<T>>();
  if (base == "min") return make_binary<T, T, T, Minimum<T>>();
  if (base == "max") return make_binary<T, T, T, Maximum<T>>();
  if (base == "neg") return make_unary<T, T, Negate<T>>();
  if (base == "abs") return make_unary<T, T, Absolute<T>>();
  if (base == "and") return make_binary<T, T, T, And<T>>();
  if (base == "or") return make_binary<T, T, T, Or<T>>();
  if (base == "xor") return make_binary<T, T, T, Xor<T>>();
  if (base == "not") return make_unary<T, T, Not<T>>();
  if (base == "shl") return make_binary<T, T, uint32_t, ShiftLeft<T>>();
  if (base == "shr") return make_binary<T, T, uint32_t, ShiftRight<T>>();
  if (base == "mul" && operation.has("lo")) return make_binary<T, T, T, MultiplyLow<T>>();
  if (base == "mul" && operation.has("hi")) return make_binary<T, T, T, MultiplyHigh<T>>();
  if (base == "mad" && operation.has("lo")) return make_ternary<T, T, T, MultiplyLowAdd<T>>();
  if (base == "mad" && operation.has("hi")) return make_ternary<T, T, T, MultiplyHighAdd<T>>();
  if constexpr (sizeof(T) < 8) {
    using D = typename Wide<T>::Of;
    if (base == "mul" && operation.has("wide")) return make_binary<D, T, T, MultiplyWide<T>>();
    if (base == "mad" && operation.has("wide")) return make_ternary<D, T, D, MultiplyWideAdd<T>>();
  }
  return {};
}

Simple find_bits(const Operation& operation) {
  const std::string& base = operation.base();
  constexpr Type kU32 = Type::kU32;
  if (base == "popc") return make_unary<uint32_t, uint32_t, CountOnes>();
  if (base == "brev") return make_unary<uint32_t, uint32_t, ReverseBits>();
  if (base == "bfind" && operation.has("shiftamt"))
    return make_unary<uint32_t, uint32_t, LeadingShift>();
  if (base == "bfind") return make_unary<uint32_t, uint32_t, HighestBit>();
  if (base == "prmt" && operation.parts.size() == 2)
    return make_ternary<uint32_t, uint32_t, uint32_t, Permute>();
  if (base == "bfi") return {insert_bits<uint32_t>, {{kU32}, {kU32, kU32, kU32, kU32}}};
  return {};
}

}  // namespace

Simple find_integer(const Operation& operation, Type type) {
  if (operation.has("sat") || operation.has("cc")) return {};
  if (type == Type::kU32) {
    const Simple bits = find_bits(operation);
    if (bits.run != nullptr) return bits;
  }
  if (type == Type::kU64 && operation.base() == "bfi") {
    constexpr Type kU32 = Type::kU32;
    return {insert_bits<uint64_t>, {{type}, {type, type, kU32, kU32}}};
  }
  switch (type) {
    case Type::kU16:
      return find_of<uint16_t>(operation);
    case Type::kS16:
      return find_of<int16_t>(operation);
    case Type::kU32:
      return find_of<uint32_t>(operation);
    case Type::kS32:
      return find_of<int32_t>(operation);
    case Type::kU64:
      return find_of<uint64_t>(operation);
    case Type::kS64:
      return find_of<int64_t>(operation);
    default:
      return {};
  }
}

}  // namespace ptx
