// Random numbers and elementary functions of the sampler, as text that every instruction set and
// CUDA compile for themselves. Every operation is a single IEEE operation or an explicit fused
// multiply-add, so that all of them draw the same token to the bit.
//
// The includer defines QUIRE_NAMESPACE, QUIRE_FUNCTION (how a function is declared) and QUIRE_FMA,
// and bits_of and float_of in that namespace.
#pragma once

#include <cstdint>

namespace QUIRE_NAMESPACE {
namespace {

constexpr int kPhiloxWords = 4;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
QUIRE_FUNCTION void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0];
  uint32_t c1 = counter[1];
  uint32_t c2 = counter[2];
  uint32_t c3 = counter[3];
  uint32_t k0 = key[0];
  uint32_t k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]; relative error 6e-9 before rounding.
QUIRE_FUNCTION float log1p_reduced(float f) {
  float p = -7.859545946e-02f;
  p = QUIRE_FMA(p, f, 1.288162172e-01f);
  p = QUIRE_FMA(p, f, -1.312876791e-01f);
  p = QUIRE_FMA(p, f, 1.418119669e-01f);
  p = QUIRE_FMA(p, f, -1.662455350e-01f);
  p = QUIRE_FMA(p, f, 2.000228614e-01f);
  p = QUIRE_FMA(p, f, -2.500081062e-01f);
  p = QUIRE_FMA(p, f, 3.333331645e-01f);
  return QUIRE_FMA(QUIRE_FMA(p, f, -0.5f), f * f, f);
}

// log(z) for normal z, with z - 1 given where that is known more exactly.
QUIRE_FUNCTION float log_from(float z, float z_minus_1) {
  const int32_t shifted = static_cast<int32_t>(bits_of(z)) - 0x3f3504f3;  // z / sqrt(1/2)
  const int32_t exponent = shifted >> 23;
  const float mantissa = float_of(bits_of(z) - (static_cast<uint32_t>(exponent) << 23));
  const float f = exponent == 0 ? z_minus_1 : mantissa - 1.f;
  return QUIRE_FMA(static_cast<float>(exponent), 0.693147182f, log1p_reduced(f));
}

QUIRE_FUNCTION float log_of(float z) {
  return log_from(z, z - 1.f);
}

// e^x for x <= 0; exactly 1 at 0 and 0 below -87.
QUIRE_FUNCTION float exp_negative(float x) {
  const float clamped = x > -88.f ? x : -88.f;
  const float n = (clamped * 1.44269504f + 12582912.f) - 12582912.f;
  const float r = QUIRE_FMA(n, 2.12194440e-4f, QUIRE_FMA(n, -0.693359375f, clamped));
  float p = 1.395048574e-03f;
  p = QUIRE_FMA(p, r, 8.368887939e-03f);
  p = QUIRE_FMA(p, r, 4.166620597e-02f);
  p = QUIRE_FMA(p, r, 1.666651815e-01f);
  p = QUIRE_FMA(p, r, 0.5f);
  const float e = QUIRE_FMA(p * r, r, r) + 1.f;
  const uint32_t power = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  const float value = e * float_of(power);
  return x > -87.f ? value : 0.f;
}

// -log(u) of the uniform u = 1 - (r + 1/2) 2^-32, accurate at both ends: an exponential variate.
QUIRE_FUNCTION float exponential(uint32_t r) {
  const float v = QUIRE_FMA(static_cast<float>(r), 0x1p-32f, 0x1p-33f);
  const float u = QUIRE_FMA(static_cast<float>(~r), 0x1p-32f, 0x1p-33f);
  return -log_from(u, -v);
}

// The race: among exponential clocks with rates e^x, clock i rings first with probability
// softmax(x)[i].
QUIRE_FUNCTION float race(float x, uint32_t r) {
  return exp_negative(x) / exponential(r);
}

}  // namespace
}  // namespace QUIRE_NAMESPACE
