// Computes the two coefficients of Adasum's pairwise combination from the inner products of a pair.
//
//     adasum(a, b) = (1 - a·b / (2‖a‖²))·a + (1 - a·b / (2‖b‖²))·b
//
// Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv
// 2006.02924.
//
// Examples: a·b = 0 gives (1, 1), the sum; a = b gives (1/2, 1/2), the average.
//
// The kernels for CPUs and for GPUs both include this file. GPU code includes no standard header,
// because NVRTC has none.
#pragma once

#ifdef __CUDACC__
#define TF_ADASUM_INLINE __device__ __forceinline__
#else
#include <math.h>
#include <string.h>
#define TF_ADASUM_INLINE inline
#endif

namespace tf_adasum {

// A squared norm below this counts as zero: the angle to such a vector is unknown, and
// adasum(0, b) = b. The value is the square root of the smallest normal double.
constexpr double kZeroNorm = 0x1p-511;
constexpr double kLargestDouble = 0x1.fffffffffffffp+1023;
// Rounding can make |ab| larger than ‖a‖‖b‖, so |ab| is limited to ‖a‖‖b‖ times this factor. The
// factor is above 1 so that ab does not change if a = b: then ab is exactly aa.
constexpr double kRoundingSlack = 1 + 0x1p-50;

struct PairCoefficients {
  double of_a;
  double of_b;
};

// aa = ‖a‖², ab = a·b, bb = ‖b‖².
//
// A NaN or an Inf in either vector makes both coefficients NaN, even if the other vector is zero,
// so that loss scaling detects it. A square that overflows has the same effect. On GPUs, squares of
// floats are floats, and overflow if the value is beyond 1.8e19.
TF_ADASUM_INLINE PairCoefficients CoefficientsOfPair(double aa, double ab, double bb) {
  const bool finite = aa <= kLargestDouble && bb <= kLargestDouble;  // false for NaN
  if (!finite) {
    constexpr unsigned long long kNaN = 0x7ff8000000000000;
    double nan;
    memcpy(&nan, &kNaN, sizeof(nan));
    return {nan, nan};
  }
  const double bound = sqrt(aa) * sqrt(bb) * kRoundingSlack;
  ab = ab > bound ? bound : ab < -bound ? -bound : ab;
  // 0.5 * (ab / aa), because 2 aa could overflow although aa does not.
  return {aa < kZeroNorm ? 1.0 : 1.0 - 0.5 * (ab / aa),
          bb < kZeroNorm ? 1.0 : 1.0 - 0.5 * (ab / bb)};
}

}  // namespace tf_adasum

#undef TF_ADASUM_INLINE
