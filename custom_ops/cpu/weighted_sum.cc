#include "weighted_sum.h"

#include <algorithm>
#include <type_traits>

#include "block.h"
#include "instruction_sets.h"

namespace tf_adasum {
namespace {

#define TF_ADASUM_DEFINE_WEIGHTED_TERMS(T)                                                        \
  TF_ADASUM_CLONES                                                                                \
  void SetWeighted(double c, const T* x, int64_t count, double* sum) {                            \
    for (int64_t k = 0; k < count; ++k) sum[k] = c * x[k];                                        \
  }                                                                                               \
                                                                                                  \
  TF_ADASUM_CLONES                                                                                \
  void AddWeighted(double c, const T* x, int64_t count, double* sum) {                            \
    for (int64_t k = 0; k < count; ++k) sum[k] += c * x[k];                                       \
  }                                                                                               \
                                                                                                  \
  TF_ADASUM_CLONES                                                                                \
  void CombineWeighted(double c, const T* x, double d, const T* y, int64_t count, T* combined) {  \
    /* `combined` may be x or y. Vectorising is safe: an element is read before it is written. */ \
    _Pragma("GCC ivdep") for (int64_t k = 0; k < count; ++k) {                                    \
      combined[k] = static_cast<T>(c * x[k] + d * y[k]);                                          \
    }                                                                                             \
  }

TF_ADASUM_DEFINE_WEIGHTED_TERMS(double)
TF_ADASUM_DEFINE_WEIGHTED_TERMS(float)
#undef TF_ADASUM_DEFINE_WEIGHTED_TERMS

}  // namespace

template <typename T>
void ChunkWeightedSum(const std::vector<const T*>& rows_R, const double* coefficients_R,
                      const Chunk& chunk, T* combined_N) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    if (rows_R.size() == 2) {  // the most common case needs no buffer for sums
      return CombineWeighted(coefficients_R[0], rows_R[0] + chunk.begin, coefficients_R[1],
                             rows_R[1] + chunk.begin, chunk.end - chunk.begin,
                             combined_N + chunk.begin);
    }
  }
  Wide<T> scratch[kBlockElements];
  double sum[kBlockElements];
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, chunk.end - begin);
    const auto row = [&](size_t i) { return Widened(rows_R[i] + begin, count, scratch); };
    SetWeighted(coefficients_R[0], row(0), count, sum);
    for (size_t i = 1; i < rows_R.size(); ++i) AddWeighted(coefficients_R[i], row(i), count, sum);
    FromDoubles(sum, count, combined_N + begin);
  }
}

template <typename T>
void SegmentWeightedSum(const std::vector<const T*>& rows_R, const double* coefficients_SR,
                        const std::vector<Chunk>& chunks, const ParallelFor& parallel_for,
                        T* combined_N) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  parallel_for(static_cast<int64_t>(chunks.size()), AverageElements(chunks) * (row_count + 1) / 2,
               [&](int64_t first, int64_t last) {
                 for (int64_t c = first; c < last; ++c) {
                   ChunkWeightedSum(rows_R, coefficients_SR + chunks[c].segment * row_count,
                                    chunks[c], combined_N);
                 }
               });
}

#define TF_ADASUM_INSTANTIATE(T)                                                          \
  template void SegmentWeightedSum<T>(const std::vector<const T*>&, const double*,        \
                                      const std::vector<Chunk>&, const ParallelFor&, T*); \
  template void ChunkWeightedSum<T>(const std::vector<const T*>&, const double*, const Chunk&, T*);
TF_ADASUM_INSTANTIATE(double)
TF_ADASUM_INSTANTIATE(float)
TF_ADASUM_INSTANTIATE(Half)
TF_ADASUM_INSTANTIATE(BFloat16)
#undef TF_ADASUM_INSTANTIATE

}  // namespace tf_adasum
