#include "pairwise_combine.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../pairwise_coefficients.h"
#include "block.h"
#include "gram.h"
#include "instruction_sets.h"
#include "products.h"
#include "weighted_sum.h"

namespace tf_adasum {
namespace {

// ---- one chunk ---------------------------------------------------------------------------------
//
// Both passes use the fastest arithmetic that is accurate enough. For float and the 16-bit types,
// this is float with sums in double, if the squares are well within the range of float. Otherwise,
// and for double, all arithmetic is in double.

// Inner products of a part of two vectors: aa = ‖a‖², ab = a·b, bb = ‖b‖².
struct PairSums {
  double aa = 0, ab = 0, bb = 0;
  bool in_float = true;  // whether the squares are within the range of float
};

// The properties of a segment that the second pass over its chunks needs.
struct Combination {
  PairCoefficients coefficients;
  bool in_float;
};

// A square that underflows in float is below 2^-126. All such squares of a chunk add up to less
// than 2^-112, so a sum of at least kSmallestSum has lost less than 2^-32 of its value. Up to
// kLargestSum, no square overflows.
constexpr double kSmallestSum = 1.0 / (1LL << 40) / (1LL << 40);  // 2^-80
constexpr double kLargestSum = 1e36;

bool IsWithinFloat(double sum_of_squares) {
  return kSmallestSum <= sum_of_squares && sum_of_squares <= kLargestSum;
}

template <typename T>
constexpr bool kHasFloatPath = std::is_same_v<Wide<T>, float>;

// The first pass over one chunk.
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

// combined[k] = c · x[k] + d · y[k]. `combined` may be x or y.
TF_ADASUM_CLONES
void CombineInFloat(float c, const float* x, float d, const float* y, int64_t count,
                    float* combined) {
#pragma GCC ivdep
  for (int64_t k = 0; k < count; ++k) combined[k] = c * x[k] + d * y[k];
}

// The second pass over one chunk.
template <typename T>
void CombinePair(const T* a_N, const T* b_N, const Chunk& chunk, const Combination& combination,
                 T* combined_N) {
  const auto [of_a, of_b] = combination.coefficients;
  if constexpr (kHasFloatPath<T>) {
    const float c = static_cast<float>(of_a), d = static_cast<float>(of_b);
    if (combination.in_float && std::isfinite(c) && std::isfinite(d)) {
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

// ---- groups of whole segments ------------------------------------------------------------------

// The size of a group, with both operands: the part of the last-level cache that one process can
// expect to use.
constexpr int64_t kGroupBytes = 8 << 20;

// The end (one past the last chunk) of the group of whole segments that starts with chunk `first`.
int64_t EndOfGroup(const std::vector<Chunk>& chunks, int64_t first, int64_t element_size) {
  const int64_t group_elements = kGroupBytes / (2 * element_size);
  const int64_t chunk_count = static_cast<int64_t>(chunks.size());
  int64_t end = first;
  while (end < chunk_count) {
    int64_t segment_end = end;
    while (segment_end < chunk_count && chunks[segment_end].segment == chunks[end].segment) {
      ++segment_end;
    }
    const bool fits = chunks[segment_end - 1].end - chunks[first].begin <= group_elements;
    if (end > first && !fits) break;
    end = segment_end;
  }
  return end;
}

}  // namespace

template <typename T>
void PairwiseCombine(const T* a_N, const T* b_N, const std::vector<Chunk>& chunks,
                     const ParallelFor& parallel_for, T* combined_N) {
  const int64_t cost = AverageElements(chunks);
  std::vector<PairSums> sums(chunks.size());
  std::vector<Combination> combinations(chunks.size());

  int64_t end = 0;
  for (int64_t begin = 0; begin < static_cast<int64_t>(chunks.size()); begin = end) {
    end = EndOfGroup(chunks, begin, sizeof(T));

    parallel_for(end - begin, cost, [&](int64_t first, int64_t last) {
      for (int64_t c = begin + first; c < begin + last; ++c) {
        sums[c] = SumPair(a_N, b_N, chunks[c]);
      }
    });

    // The chunks of a segment are added in order, by one thread.
    for (int64_t first = begin, last = begin; first < end; first = last) {
      PairSums segment;
      for (; last < end && chunks[last].segment == chunks[first].segment; ++last) {
        segment.aa += sums[last].aa;
        segment.ab += sums[last].ab;
        segment.bb += sums[last].bb;
        segment.in_float &= sums[last].in_float;
      }
      std::fill(
          combinations.begin() + first, combinations.begin() + last,
          Combination{CoefficientsOfPair(segment.aa, segment.ab, segment.bb), segment.in_float});
    }

    parallel_for(end - begin, cost, [&](int64_t first, int64_t last) {
      for (int64_t c = end - 1 - first; c > end - 1 - last; --c) {
        CombinePair(a_N, b_N, chunks[c], combinations[c], combined_N);
      }
    });
  }
}

template void PairwiseCombine(const double*, const double*, const std::vector<Chunk>&,
                              const ParallelFor&, double*);
template void PairwiseCombine(const float*, const float*, const std::vector<Chunk>&,
                              const ParallelFor&, float*);
template void PairwiseCombine(const Half*, const Half*, const std::vector<Chunk>&,
                              const ParallelFor&, Half*);
template void PairwiseCombine(const BFloat16*, const BFloat16*, const std::vector<Chunk>&,
                              const ParallelFor&, BFloat16*);

}  // namespace tf_adasum
