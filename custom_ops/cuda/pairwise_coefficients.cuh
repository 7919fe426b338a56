// The two coefficients of Adasum's pairwise combination, from the inner products of the pair.
//
//     adasum(a, b) = (1 - a·b / (2‖a‖²))·a + (1 - a·b / (2‖b‖²))·b
//
// Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv
// 2006.02924. The contract is that of the CPU kernel (cpu/pairwise_coefficients.h).
//
// Examples: a·b = 0 gives (1, 1), the sum; a = b gives (1/2, 1/2), the average.
#ifndef TF_ADASUM_CUDA_PAIRWISE_COEFFICIENTS_CUH_
#define TF_ADASUM_CUDA_PAIRWISE_COEFFICIENTS_CUH_

namespace tf_adasum {

// Indices into the sums of a pair.
enum { kSquareOfA = 0, kProduct = 1, kSquareOfB = 2, kPairSums = 3 };

// A squared norm below this counts as zero, and 0 ⊕ b = b: sqrt(DBL_MIN) = 2^-511.
constexpr double kZeroNorm = 1.4916681462400413e-154;
constexpr double kLargestDouble = 1.7976931348623157e308;
// Keeps |ab| <= ‖a‖‖b‖ where rounding broke it, but leaves a = b alone, whose ab is exactly aa.
constexpr double kRoundingSlack = 1 + 4 * 2.220446049250313e-16;

struct PairCoefficients {
  double of_a;
  double of_b;
};

// One NaN or Inf in either vector spoils all of the result, also beside a zero vector, so that loss
// scaling sees it. So does a square that overflows: of a float beyond 1.8e19.
__device__ __forceinline__ PairCoefficients CombinePair(const double (&sums)[kPairSums]) {
  const double aa = sums[kSquareOfA];
  const double bb = sums[kSquareOfB];
  const bool finite = aa <= kLargestDouble && bb <= kLargestDouble;  // false for NaN
  if (!finite) {
    const double nan = __longlong_as_double(0x7ff8000000000000LL);
    return {nan, nan};
  }
  const double bound = sqrt(aa) * sqrt(bb) * kRoundingSlack;
  double ab = sums[kProduct];
  ab = ab > bound ? bound : ab < -bound ? -bound : ab;
  // 2 aa could overflow where aa does not.
  return {aa < kZeroNorm ? 1.0 : 1.0 - 0.5 * (ab / aa),
          bb < kZeroNorm ? 1.0 : 1.0 - 0.5 * (ab / bb)};
}

}  // namespace tf_adasum

#endif  // TF_ADASUM_CUDA_PAIRWISE_COEFFICIENTS_CUH_
