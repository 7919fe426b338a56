#include "pairwise_combine.h"

#include <algorithm>

#include "element_types.h"
#include "pairwise_chunk.h"
#include "pairwise_coefficients.h"

namespace tf_adasum {
namespace {

// Of both operands together: a part of the last-level cache that one process may count on.
constexpr int64_t kGroupBytes = 8 << 20;

// What the second pass over a chunk needs to know of its segment.
struct Combination {
  PairwiseCoefficients coefficients;
  bool in_float;
};

// The end of the group of whole segments that starts with chunk `first`.
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
      std::fill(combinations.begin() + first, combinations.begin() + last,
                Combination{CombinePair(segment.aa, segment.ab, segment.bb), segment.in_float});
    }

    parallel_for(end - begin, cost, [&](int64_t first, int64_t last) {
      for (int64_t c = end - 1 - first; c > end - 1 - last; --c) {
        const auto& [coefficients, in_float] = combinations[c];
        CombinePairOf(a_N, b_N, chunks[c], coefficients.of_a, coefficients.of_b, in_float,
                      combined_N);
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
