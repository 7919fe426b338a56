// The four element types of gradients, with conversions to double (exact) and from double
// (rounded).
//
// The two 16-bit types only store their bits. Their conversions are straight-line code with selects
// instead of branches, so compilers can vectorise them for every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace tf_adasum {

struct Half {  // IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits
  uint16_t bits;
};

struct BFloat16 {  // the upper half of a float: 1 sign, 8 exponent, 7 mantissa bits
  uint16_t bits;
};

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr uint32_t kFloatSign = 0x80000000u;
constexpr uint32_t kFloatInfinity = 0x7f800000u;
constexpr int kHalfMantissaShift = 23 - 10;
constexpr uint32_t kHalfRebias = (127u - 15u) << 23;  // from half's exponent bias to float's
constexpr uint32_t kHalfSmallestNormal = 0x0400u;
constexpr uint32_t kHalfInfinity = 0x7c00u;
constexpr uint32_t kHalfNaN = 0x7e00u;
constexpr float kHalfSubnormalUnit = 1.0f / (1 << 24);
constexpr uint32_t kHalfSmallestNormalAsFloat = 113u << 23;  // the bits of 2^-14
constexpr uint32_t kHalfOverflowAsFloat = 0x477ff000u;       // the bits of 65520; rounds to Inf
constexpr uint32_t kBFloat16NaN = 0x7fc0u;

// ---- widening: exact ---------------------------------------------------------------------------

inline double Widen(double value) { return value; }
inline double Widen(float value) { return value; }
inline double Widen(BFloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }

// Example: 0x3c00 is 1.0. After the shift and the change of the exponent bias, it is 0x3f800000,
// the bits of 1.0f.
inline double Widen(Half value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t normal = (magnitude << kHalfMantissaShift) + kHalfRebias;
  const uint32_t subnormal =
      BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * kHalfSubnormalUnit);
  uint32_t bits = magnitude < kHalfSmallestNormal ? subnormal : normal;
  bits = magnitude >= kHalfInfinity ? normal + kHalfRebias : bits;  // exponent 31 becomes 255
  return FloatOf(bits | sign);
}

// ---- rounding: to nearest, ties to even, once --------------------------------------------------

// Rounds a double to float "to odd": an inexact result is truncated, and its last bit is set. This
// bit records that digits were cut off. Therefore rounding the float again, to 16 bits, gives the
// same result as rounding the double directly to 16 bits. Rounding to the *nearest* float first
// would not: 1 + 2^-11 + 2^-40 would become 1 + 2^-11, which is a tie, and then 1 in half
// precision, although the nearest half is 1 + 2^-10.
inline uint32_t RoundToOddFloat(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const uint32_t rounded_away = (value < 0 ? -back : back) > (value < 0 ? -value : value) ? 1u : 0u;
  const uint32_t inexact = back != value ? 1u : 0u;
  return (BitsOf(nearest) - rounded_away) | inexact;
}

inline void Narrow(double value, double* out) { *out = value; }
inline void Narrow(double value, float* out) { *out = static_cast<float>(value); }

inline void Narrow(double value, BFloat16* out) {
  const uint32_t bits = RoundToOddFloat(value);
  const uint32_t nearest_even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & ~kFloatSign) > kFloatInfinity;
  out->bits = static_cast<uint16_t>(is_nan ? kBFloat16NaN : nearest_even);
}

inline void Narrow(double value, Half* out) {
  const uint32_t bits = RoundToOddFloat(value);
  const uint32_t magnitude = bits & ~kFloatSign;
  const uint32_t last_bit = (magnitude >> kHalfMantissaShift) & 1u;
  const uint32_t normal = (magnitude - kHalfRebias + 0xfffu + last_bit) >> kHalfMantissaShift;
  // The last bit of a float in [0.5, 1) is worth 2^-24, like the last bit of a subnormal half. So
  // adding 0.5 rounds the value to a multiple of 2^-24.
  const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  uint32_t half = magnitude < kHalfSmallestNormalAsFloat ? subnormal : normal;
  half = magnitude >= kHalfOverflowAsFloat ? kHalfInfinity : half;
  half = magnitude > kFloatInfinity ? kHalfNaN : half;
  out->bits = static_cast<uint16_t>(half | (bits & kFloatSign) >> 16);
}

}  // namespace tf_adasum
