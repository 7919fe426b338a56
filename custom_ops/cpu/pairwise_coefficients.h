// The two coefficients of Adasum's pairwise combination, from the inner products of the pair.
//
//     adasum(a, b) = (1 - a·b / (2‖a‖²))·a + (1 - a·b / (2‖b‖²))·b
//
// Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv
// 2006.02924.
//
// Examples: a·b = 0 gives (1, 1), the sum; a = b gives (1/2, 1/2), the average.
#ifndef TF_ADASUM_KERNELS_PAIRWISE_COEFFICIENTS_H_
#define TF_ADASUM_KERNELS_PAIRWISE_COEFFICIENTS_H_

#include <algorithm>
#include <cmath>
#include <limits>

namespace tf_adasum {

struct PairwiseCoefficients {
  double of_a;
  double of_b;
};

// aa = ‖a‖², ab = a·b, bb = ‖b‖².
inline PairwiseCoefficients CombinePair(double aa, double ab, double bb) {
  // A squared norm below this counts as zero: nothing can be said about the angle to such a vector,
  // and 0 ⊕ b = b.
  static const double zero_norm = std::sqrt(std::numeric_limits<double>::min());
  // Keeps |ab| <= ‖a‖‖b‖ where rounding broke it, but leaves a = b alone, whose ab is exactly aa.
  constexpr double kRoundingSlack = 1 + 4 * std::numeric_limits<double>::epsilon();

  // One NaN or Inf in either vector spoils all of the result, also beside a zero vector, so that
  // loss scaling sees it.
  if (!std::isfinite(aa) || !std::isfinite(bb)) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  const double bound = std::sqrt(aa) * std::sqrt(bb) * kRoundingSlack;
  ab = std::clamp(ab, -bound, bound);
  // 2 aa could overflow where aa does not.
  return {aa < zero_norm ? 1.0 : 1.0 - 0.5 * (ab / aa),
          bb < zero_norm ? 1.0 : 1.0 - 0.5 * (ab / bb)};
}

}  // namespace tf_adasum

#endif  // TF_ADASUM_KERNELS_PAIRWISE_COEFFICIENTS_H_
