#include "pairwise_chunk.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "block.h"
#include "gram.h"
#include "products.h"
#include "weighted_sum.h"
#include "weighted_terms.h"

namespace tf_adasum {
namespace {

// A square that vanishes in float is below 2^-126; the squares of a chunk that do are then below
// 2^-112, and a sum from here on has lost less than 2^-32 of itself. No square overflows.
constexpr double kSmallestSum = 1.0 / (1LL << 40) / (1LL << 40);  // 2^-80
constexpr double kLargestSum = 1e36;

bool IsWithinFloat(double sum_of_squares) {
  return kSmallestSum <= sum_of_squares && sum_of_squares <= kLargestSum;
}

template <typename T>
constexpr bool kHasFloatPath = std::is_same_v<Wide<T>, float>;

}  // namespace

template <typename T>
PairSums SumPair(const T* a_N, const T* b_N, const Chunk& chunk) {
  PairSums sums;
  if constexpr (kHasFloatPath<T>) {
    Wide<T> a_scratch[kBlockElements], b_scratch[kBlockElements];
    const bool is_float = std::is_same_v<T, float>;
    const int64_t step = is_float ? chunk.end - chunk.begin : kBlockElements;
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += step) {
      const int64_t count = std::min(step, chunk.end - begin);
      AddPairProductsInFloat(Widened(a_N + begin, count, a_scratch),
                             Widened(b_N + begin, count, b_scratch), count, &sums.aa);
    }
    if (IsWithinFloat(sums.aa) && IsWithinFloat(sums.bb)) return sums;
  }
  sums.in_float = false;
  ChunkProducts<T>({a_N, b_N}, chunk, &sums.aa);
  return sums;
}

template <typename T>
void CombinePairOf(const T* a_N, const T* b_N, const Chunk& chunk, double of_a, double of_b,
                   bool in_float, T* combined_N) {
  if constexpr (kHasFloatPath<T>) {
    const float c = static_cast<float>(of_a), d = static_cast<float>(of_b);
    if (in_float && std::isfinite(c) && std::isfinite(d)) {
      if constexpr (std::is_same_v<T, float>) {
        return CombineInFloat(c, a_N + chunk.begin, d, b_N + chunk.begin, chunk.end - chunk.begin,
                              combined_N + chunk.begin);
      } else {
        float a[kBlockElements], b[kBlockElements];
        for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlockElements) {
          const int64_t count = std::min(kBlockElements, chunk.end - begin);
          CombineInFloat(c, Widened(a_N + begin, count, a), d, Widened(b_N + begin, count, b),
                         count, a);
          FromFloats(a, count, combined_N + begin);
        }
        return;
      }
    }
  }
  const double coefficients[] = {of_a, of_b};
  ChunkWeightedSum<T>({a_N, b_N}, coefficients, chunk, combined_N);
}

#define TF_ADASUM_INSTANTIATE(T)                                                              \
  template PairSums SumPair<T>(const T*, const T*, const Chunk&);                             \
  template void CombinePairOf<T>(const T*, const T*, const Chunk&, double, double, bool, T*);
TF_ADASUM_INSTANTIATE(double)
TF_ADASUM_INSTANTIATE(float)
TF_ADASUM_INSTANTIATE(Half)
TF_ADASUM_INSTANTIATE(BFloat16)
#undef TF_ADASUM_INSTANTIATE

}  // namespace tf_adasum
