#include "weighted_sum.h"

#include <algorithm>

#include "block.h"

namespace tf_adasum {
namespace {

// Minus zero is the neutral element of addition: x + (-0.0) is x for every x, also for x = -0.0.
constexpr double kEmptySum = -0.0;

template <typename T>
void CombineChunk(const std::vector<const T*>& rows_R, const double* coefficients_R,
                  const Chunk& chunk, T* combined_N) {
  double sum[kBlockElements];
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, chunk.end - begin);
    std::fill_n(sum, count, kEmptySum);
    for (size_t i = 0; i < rows_R.size(); ++i) {
      AddScaled(coefficients_R[i], rows_R[i] + begin, count, sum);
    }
    FromDoubles(sum, count, combined_N + begin);
  }
}

}  // namespace

template <typename T>
void SegmentWeightedSum(const std::vector<const T*>& rows_R, const double* coefficients_SR,
                        const std::vector<Chunk>& chunks, const ParallelFor& parallel_for,
                        T* combined_N) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  parallel_for(static_cast<int64_t>(chunks.size()), AverageElements(chunks) * (row_count + 1) / 2,
               [&](int64_t first, int64_t last) {
                 for (int64_t c = first; c < last; ++c) {
                   CombineChunk(rows_R, coefficients_SR + chunks[c].segment * row_count, chunks[c],
                                combined_N);
                 }
               });
}

#define TF_ADASUM_INSTANTIATE(T)                                                                  \
  template void SegmentWeightedSum<T>(const std::vector<const T*>&, const double*,                \
                                      const std::vector<Chunk>&, const ParallelFor&, T*);
TF_ADASUM_INSTANTIATE(double)
TF_ADASUM_INSTANTIATE(float)
TF_ADASUM_INSTANTIATE(Half)
TF_ADASUM_INSTANTIATE(BFloat16)
#undef TF_ADASUM_INSTANTIATE

}  // namespace tf_adasum
