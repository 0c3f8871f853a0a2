// Elementary functions on vectors. Polynomials are our own least-maximum fits; the errors given are
// those of the fit in exact arithmetic. NaN goes in and comes out (the constant is the first
// operand of max and min for that reason).
#pragma once

namespace quire::cpu::QUIRE_ISA {
namespace {

// c[0] + c[1] x + ... by Horner's rule.
template <int N>
inline F32 polynomial(const float (&c)[N], F32 x) {
  F32 r = broadcast(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) r = fma(r, x, broadcast(c[i]));
  return r;
}

constexpr float kLog2E = 1.4426950408889634f;

// 2^x; relative error 2e-9. exp2(0) is exactly 1, below -127 it is 0. Always inline: left to itself
// the compiler decides by the size of the rest of the file, which cost a prefill up to 10 %.
QUIRE_ALWAYS_INLINE F32 exp2(F32 x) {
  constexpr float kCoefficients[] = {6.931471825e-01f, 2.402265072e-01f, 5.550327897e-02f,
                                     9.618005715e-03f, 1.340028364e-03f, 1.547589782e-04f};
  x = max(broadcast(-127.f), min(broadcast(128.f), x));
  const F32 n = round_even(x);
  const F32 f = x - n;
  return fma(polynomial(kCoefficients, f), f, broadcast(1.f)) * pow2(n);
}

// e^x; relative error 3e-9. The remainder is taken in two steps, so large arguments lose nothing.
inline F32 exp(F32 x) {
  constexpr float kCoefficients[] = {5.000000000e-01f, 1.666651815e-01f, 4.166620597e-02f,
                                     8.368887939e-03f, 1.395048574e-03f};
  x = max(broadcast(-88.f), min(broadcast(89.f), x));
  const F32 n = round_even(x * broadcast(kLog2E));
  const F32 r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), x));
  return (fma(polynomial(kCoefficients, r) * r, r, r) + broadcast(1.f)) * pow2(n);
}

inline F32 sigmoid(F32 x) {
  return broadcast(1.f) / (broadcast(1.f) + exp(zero() - x));
}

// Odd polynomial (4e-9) below 0.625, by the exponential above.
inline F32 tanh(F32 x) {
  constexpr float kCoefficients[] = {-3.333328366e-01f, 1.333149076e-01f, -5.374349654e-02f,
                                     2.065057866e-02f, -5.717036780e-03f};
  const F32 a = abs(x);
  const F32 square = x * x;
  const F32 small = fma(polynomial(kCoefficients, square) * square, x, x);
  const F32 one = broadcast(1.f);
  const F32 magnitude = one - broadcast(2.f) / (exp(a + a) + one);
  const F32 large = select_less(x, zero(), zero() - magnitude, magnitude);
  return select_less(a, broadcast(0.625f), small, large);
}

// erfc(a) for a >= 0 as e^(-a^2) t P(t), t = 1 / (1 + a / 2); relative error 4e-9 for a <= 10.
inline F32 erfc_positive(F32 a) {
  constexpr float kCoefficients[] = {2.820880115e-01f,  2.822639346e-01f,  2.450639606e-01f,
                                     1.862479299e-01f,  5.254609883e-02f,  4.090077803e-02f,
                                     -3.063584492e-02f, -2.805064619e-01f, 3.753645420e-01f,
                                     -1.887088716e-01f, 3.537591174e-02f};
  const F32 t = broadcast(1.f) / fma(a, broadcast(0.5f), broadcast(1.f));
  return exp(zero() - a * a) * t * polynomial(kCoefficients, t);
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
