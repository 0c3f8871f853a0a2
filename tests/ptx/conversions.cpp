// cvt: between integers and floating point, rounded as its name wants it.
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "elementwise.h"
#include "module.h"
#include "number_formats.h"

namespace ptx {
namespace {

// How a conversion rounds to an integer.
enum class Rounding { kNearestEven, kToZero, kDown, kUp };

double rounded(double x, Rounding rounding) {
  switch (rounding) {
    case Rounding::kToZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    case Rounding::kUp:
      return std::ceil(x);
    case Rounding::kNearestEven:
      return std::nearbyint(x);
  }
  return x;
}

Rounding rounding_of(const Operation& operation) {
  if (operation.has("rzi")) return Rounding::kToZero;
  if (operation.has("rmi")) return Rounding::kDown;
  if (operation.has("rpi")) return Rounding::kUp;
  return Rounding::kNearestEven;
}

// Beyond the range the nearest end of it, of NaN 0.
template <typename D>
D to_integer(double x) {
  using Limits = std::numeric_limits<D>;
  if (x != x) return 0;
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  if (x >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<D>(x);
}

// An operand's low bytes: registers may be wider than what a conversion takes of them.
template <typename A>
A low_of(Warp& warp, const Instruction& instruction, int lane) {
  const auto size = static_cast<size_t>(instruction.detail & 0xff);
  const std::byte* const at =
      warp.values<std::byte>(instruction.operands[1]) + static_cast<size_t>(lane) * size;
  A value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Integers widen by their own sign, to the whole of the register.
template <typename D>
void store_integer(Warp& warp, const Instruction& instruction, int lane, D value) {
  const int size = instruction.detail >> 8 & 0xff;
  std::byte* const at =
      warp.values<std::byte>(instruction.operands[0]) + static_cast<size_t>(lane) * size;
  const auto wide = static_cast<int64_t>(value);
  std::memcpy(at, &wide, static_cast<size_t>(size));
}

template <typename D, typename A, Rounding kRounding>
void convert(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  // Most registers are as wide as what is in them.
  if constexpr (std::is_integral_v<D> && std::is_integral_v<A>) {
    if (instruction.detail == static_cast<int>(sizeof(A) | sizeof(D) << 8)) {
      const A* const a = warp.values<A>(instruction.operands[1]);
      write<D>(warp, instruction, lanes, [&](int lane) { return static_cast<D>(a[lane]); });
      return;
    }
  }
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    const A a = low_of<A>(warp, instruction, lane);
    if constexpr (std::is_integral_v<D> && std::is_integral_v<A>) {
      store_integer(warp, instruction, lane, static_cast<D>(a));
    } else if constexpr (std::is_integral_v<D>) {
      store_integer(warp, instruction, lane,
                    to_integer<D>(rounded(static_cast<double>(a), kRounding)));
    } else {
      warp.values<D>(instruction.operands[0])[lane] = static_cast<D>(a);
    }
  }
}

template <typename D, typename A>
Handler with_rounding(Rounding rounding) {
  if constexpr (std::is_integral_v<D> && std::is_floating_point_v<A>) {
    if (rounding == Rounding::kToZero) return convert<D, A, Rounding::kToZero>;
    if (rounding == Rounding::kDown) return convert<D, A, Rounding::kDown>;
    if (rounding == Rounding::kUp) return convert<D, A, Rounding::kUp>;
  }
  return convert<D, A, Rounding::kNearestEven>;
}

template <typename D>
Handler from_type(Type from, Rounding rounding) {
  switch (from) {
    case Type::kU8:
      return with_rounding<D, uint8_t>(rounding);
    case Type::kS8:
      return with_rounding<D, int8_t>(rounding);
    case Type::kU16:
      return with_rounding<D, uint16_t>(rounding);
    case Type::kS16:
      return with_rounding<D, int16_t>(rounding);
    case Type::kU32:
      return with_rounding<D, uint32_t>(rounding);
    case Type::kS32:
      return with_rounding<D, int32_t>(rounding);
    case Type::kU64:
      return with_rounding<D, uint64_t>(rounding);
    case Type::kS64:
      return with_rounding<D, int64_t>(rounding);
    case Type::kF32:
      return with_rounding<D, float>(rounding);
    case Type::kF64:
      return with_rounding<D, double>(rounding);
    default:
      return nullptr;
  }
}

Handler between(Type to, Type from, Rounding rounding) {
  switch (to) {
    case Type::kU8:
      return from_type<uint8_t>(from, rounding);
    case Type::kS8:
      return from_type<int8_t>(from, rounding);
    case Type::kU16:
      return from_type<uint16_t>(from, rounding);
    case Type::kS16:
      return from_type<int16_t>(from, rounding);
    case Type::kU32:
      return from_type<uint32_t>(from, rounding);
    case Type::kS32:
      return from_type<int32_t>(from, rounding);
    case Type::kU64:
      return from_type<uint64_t>(from, rounding);
    case Type::kS64:
      return from_type<int64_t>(from, rounding);
    case Type::kF32:
      return from_type<float>(from, rounding);
    case Type::kF64:
      return from_type<double>(from, rounding);
    default:
      return nullptr;
  }
}

// ---------------------------------------------------------------- of one width

struct ToBf16 {
  static uint16_t of(float a) { return to_bf16(a); }
};
struct ToF16 {
  static uint16_t of(float a) { return to_f16(a); }
};
struct FromBf16 {
  static float of(uint16_t a) { return from_bf16(a); }
};
struct FromF16 {
  static float of(uint16_t a) { return from_f16(a); }
};
// The first operand goes to the upper half.
struct ToBf16Pair {
  static uint32_t of(float a, float b) { return uint32_t{to_bf16(a)} << 16 | to_bf16(b); }
};
struct ToF16Pair {
  static uint32_t of(float a, float b) { return uint32_t{to_f16(a)} << 16 | to_f16(b); }
};
struct ToE4m3Pair {
  static uint16_t of(float a, float b) {
    return static_cast<uint16_t>(to_e4m3_saturated(a) << 8 | to_e4m3_saturated(b));
  }
};
struct FromE4m3Pair {
  static uint32_t of(uint16_t a) {
    static const std::vector<uint16_t> halves = [] {
      std::vector<uint16_t> of_code;
      for (int code = 0; code < 256; ++code)
        of_code.push_back(to_f16(from_e4m3(static_cast<uint8_t>(code))));
      return of_code;
    }();
    return halves[a & 0xff] | uint32_t{halves[a >> 8]} << 16;
  }
};
// Into [0, 1]; NaN becomes 0.
struct Saturate {
  static float of(float a) { return a > 0.f ? std::fmin(a, 1.f) : 0.f; }
};
template <typename T, Rounding kRounding>
struct Round {
  static T of(T a) { return static_cast<T>(rounded(a, kRounding)); }
};

template <typename T>
Handler to_whole(Rounding rounding) {
  switch (rounding) {
    case Rounding::kToZero:
      return unary<T, T, Round<T, Rounding::kToZero>>;
    case Rounding::kDown:
      return unary<T, T, Round<T, Rounding::kDown>>;
    case Rounding::kUp:
      return unary<T, T, Round<T, Rounding::kUp>>;
    case Rounding::kNearestEven:
      return unary<T, T, Round<T, Rounding::kNearestEven>>;
  }
  return nullptr;
}

Handler find_of_halves(const Operation& operation, const std::string& to, const std::string& from) {
  const bool is_nearest = operation.has("rn");
  if (to == "bf16" && from == "f32" && is_nearest) return unary<uint16_t, float, ToBf16>;
  if (to == "f16" && from == "f32" && is_nearest) return unary<uint16_t, float, ToF16>;
  if (to == "f32" && from == "bf16") return unary<float, uint16_t, FromBf16>;
  if (to == "f32" && from == "f16") return unary<float, uint16_t, FromF16>;
  if (to == "bf16x2" && is_nearest) return binary<uint32_t, float, float, ToBf16Pair>;
  if (to == "f16x2" && from == "f32" && is_nearest)
    return binary<uint32_t, float, float, ToF16Pair>;
  if (to == "f16x2" && from == "e4m3x2") return unary<uint32_t, uint16_t, FromE4m3Pair>;
  if (to == "e4m3x2" && operation.has("satfinite"))
    return binary<uint16_t, float, float, ToE4m3Pair>;
  return nullptr;
}

}  // namespace

Handler find_conversion(const Operation& operation) {
  if (operation.base() != "cvt" || operation.has("ftz")) return nullptr;
  const std::string& to = operation.parts[operation.parts.size() - 2];
  const std::string& from = operation.parts.back();
  if (to.find("16") != std::string::npos && to[0] != 'u' && to[0] != 's')
    return find_of_halves(operation, to, from);
  if (from.find("f16") != std::string::npos || to == "e4m3x2")
    return find_of_halves(operation, to, from);
  if (operation.has("sat"))
    return to == "f32" && from == "f32" ? unary<float, float, Saturate> : nullptr;
  if (to == from && to == "f32") return to_whole<float>(rounding_of(operation));
  if (to == from && to == "f64") return to_whole<double>(rounding_of(operation));
  return between(type_named(to), type_named(from), rounding_of(operation));
}

}  // namespace ptx
