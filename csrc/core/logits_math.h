// Penalties and log-probabilities, as text that every instruction set and CUDA compile for
// themselves. Every operation is a single IEEE operation, so
// that all of them have the same result to the bit.
//
// The includer defines QUIRE_NAMESPACE and QUIRE_FUNCTION (how a function is declared).
#pragma once

#include <cstdint>

namespace QUIRE_NAMESPACE {
namespace {

// How a sequence uses a token: how often its output holds it, and whether its prompt does.
constexpr uint32_t kInPrompt = 1u << 31;

// A logit after the repetition penalty, of tokens in prompt or output (Keskar et al., "CTRL",
// 2019), then the frequency and presence penalties, of tokens in the output.
QUIRE_FUNCTION float penalized(float logit, uint32_t uses, float repetition, float frequency,
                               float presence) {
  if (repetition != 1.f) logit = logit > 0.f ? logit / repetition : logit * repetition;
  const uint32_t count = uses & ~kInPrompt;
  if (count > 0 && (frequency != 0.f || presence != 0.f))
    logit -= frequency * static_cast<float>(count) + presence;
  return logit;
}

// Probabilities are summed as integers of 2^-44 of the largest, whose sum does not depend on the
// order of addition; 2^20 of them fit.
constexpr int kWeightBits = 44;

// 2^44 e^x, rounded down, for x <= 0: a Taylor series after reduction by a power of two.
QUIRE_FUNCTION uint64_t fixed_point_exp(double x) {
  const double clamped = x > -30.5 ? x : -30.5;  // less than one
  const int n = static_cast<int>(clamped * 1.4426950408889634 - 0.5);
  const double r = (clamped - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double sum = 1. / 479001600;
  sum = sum * r + 1. / 39916800;
  sum = sum * r + 1. / 3628800;
  sum = sum * r + 1. / 362880;
  sum = sum * r + 1. / 40320;
  sum = sum * r + 1. / 5040;
  sum = sum * r + 1. / 720;
  sum = sum * r + 1. / 120;
  sum = sum * r + 1. / 24;
  sum = sum * r + 1. / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1.;
  sum = sum * r + 1.;
  const auto power = static_cast<double>(int64_t{1} << (kWeightBits + n));
  const auto weight = static_cast<int64_t>(sum * power);
  return x > -30.5 ? static_cast<uint64_t>(weight) : 0;
}

// log(sum / 2^44) of a sum of at least 2^44, by the series of the inverse hyperbolic tangent.
QUIRE_FUNCTION double log_of_weights(uint64_t sum) {
  double z = static_cast<double>(sum) * 0x1p-44;
  int exponent = 0;
  for (; z > 1.4142135623730951; ++exponent) z *= 0.5;
  const double s = (z - 1.) / (z + 1.);
  const double square = s * s;
  double series = 1. / 21;
  for (int odd = 19; odd > 0; odd -= 2) series = series * square + 1. / odd;
  return exponent * 0.6931471805599453 + 2. * s * series;
}

// The log-probability of a token, of a row whose largest logit is `max` and whose weights add up to
// e^`log_sum`.
QUIRE_FUNCTION float logprob_of(float logit, float max, double log_sum) {
  return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max) - log_sum);
}

}  // namespace
}  // namespace QUIRE_NAMESPACE
