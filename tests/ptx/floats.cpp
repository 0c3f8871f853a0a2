// Arithmetic of float32 and float64, rounded as the operation's name wants it. Compiled without
// contraction: a fused multiply-add is std::fma.
//
// ex2.approx, rcp.approx and their like are computed here to the nearest; the hardware's may differ
// by what the manual allows (2^-22 relative for ex2, 1 ulp for rcp), so that only kernels without
// them have the hardware's bits.
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "elementwise.h"

namespace ptx {
namespace {

// What arithmetic makes of NaNs, whatever theirs were.
float canonical(float x) {
  if (x == x) return x;
  const uint32_t bits = 0x7fffffff;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
double canonical(double x) {
  return x;
}

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x;
}

template <typename T>
struct Add {
  static T of(T a, T b) { return canonical(a + b); }
};
template <typename T>
struct Subtract {
  static T of(T a, T b) { return canonical(a - b); }
};
template <typename T>
struct Multiply {
  static T of(T a, T b) { return canonical(a * b); }
};
template <typename T>
struct Divide {
  static T of(T a, T b) { return canonical(a / b); }
};
template <typename T>
struct Reciprocal {
  static T of(T a) { return canonical(T{1} / a); }
};
template <typename T>
struct SquareRoot {
  static T of(T a) { return canonical(std::sqrt(a)); }
};
template <typename T>
struct MultiplyAdd {
  static T of(T a, T b, T c) { return canonical(std::fma(a, b, c)); }
};
// Rounded to minus infinity.
struct MultiplyAddDown {
  __attribute__((noinline)) static float of(float a, float b, float c) {
    const int before = std::fegetround();
    std::fesetround(FE_DOWNWARD);
    const volatile float x = a;
    const volatile float result = std::fma(x, b, c);
    std::fesetround(before);
    return canonical(result);
  }
};
// Of a NaN and a number the number; of two zeros -0 is the smaller.
template <typename T>
struct Minimum {
  static T of(T a, T b) {
    if (a == b) return std::signbit(a) ? a : b;
    return canonical(std::fmin(a, b));
  }
};
template <typename T>
struct Maximum {
  static T of(T a, T b) {
    if (a == b) return std::signbit(a) ? b : a;
    return canonical(std::fmax(a, b));
  }
};
template <typename T>
struct Negate {
  static T of(T a) { return -a; }
};
template <typename T>
struct Absolute {
  static T of(T a) { return std::fabs(a); }
};
// The sign of a on the magnitude of b.
template <typename T>
struct CopySign {
  static T of(T a, T b) { return std::copysign(b, a); }
};
struct Exponential {
  static float of(float a) { return canonical(static_cast<float>(std::exp2(double{a}))); }
};
struct ExponentialFlushed {
  static float of(float a) { return flushed(Exponential::of(flushed(a))); }
};
struct ReciprocalFlushed {
  static float of(float a) { return flushed(canonical(1.f / flushed(a))); }
};

template <typename T>
Simple find_of(const Operation& operation) {
  const std::string& base = operation.base();
  if (base == "min") return make_binary<T, T, T, Minimum<T>>();
  if (base == "max") return make_binary<T, T, T, Maximum<T>>();
  if (base == "neg") return make_unary<T, T, Negate<T>>();
  if (base == "abs") return make_unary<T, T, Absolute<T>>();
  if (base == "copysign") return make_binary<T, T, T, CopySign<T>>();
  if (!operation.has("rn")) return {};
  if (base == "add") return make_binary<T, T, T, Add<T>>();
  if (base == "sub") return make_binary<T, T, T, Subtract<T>>();
  if (base == "mul") return make_binary<T, T, T, Multiply<T>>();
  if (base == "div") return make_binary<T, T, T, Divide<T>>();
  if (base == "rcp") return make_unary<T, T, Reciprocal<T>>();
  if (base == "sqrt") return make_unary<T, T, SquareRoot<T>>();
  if (base == "fma") return make_ternary<T, T, T, MultiplyAdd<T>>();
  return {};
}

Simple find_approximate(const Operation& operation) {
  const std::string& base = operation.base();
  const bool flushes = operation.has("ftz");
  if (base == "ex2" && flushes) return make_unary<float, float, ExponentialFlushed>();
  if (base == "ex2") return make_unary<float, float, Exponential>();
  if (base == "rcp" && flushes) return make_unary<float, float, ReciprocalFlushed>();
  if (base == "rcp") return make_unary<float, float, Reciprocal<float>>();
  return {};
}

}  // namespace

Simple find_float(const Operation& operation, Type type) {
  if (operation.has("sat") || operation.has("NaN")) return {};
  if (operation.has("approx")) return type == Type::kF32 ? find_approximate(operation) : Simple{};
  if (operation.has("ftz")) return {};
  if (operation.base() == "fma" && operation.has("rm") && type == Type::kF32)
    return make_ternary<float, float, float, MultiplyAddDown>();
  if (type == Type::kF32) return find_of<float>(operation);
  if (type == Type::kF64) return find_of<double>(operation);
  return {};
}

}  // namespace ptx
