#include "gram.h"

#include <algorithm>

#include "block.h"

namespace tf_adasum {
namespace {

// Adds <rows[i], rows[j]> over one chunk, for all i <= j, to upper[0], upper[1], … in row-major
// order. `blocks` has room for one block of every row.
template <typename T>
void AddChunkGram(const std::vector<const T*>& rows_R, const Chunk& chunk, double* blocks,
                  double* upper) {
  const size_t row_count = rows_R.size();
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, chunk.end - begin);
    const int64_t padded_count = PaddedToLanes(count);
    for (size_t i = 0; i < row_count; ++i) {
      ToDoubles(rows_R[i] + begin, count, blocks + i * kBlockElements);
    }
    double* sum = upper;
    for (size_t i = 0; i < row_count; ++i) {
      for (size_t j = i; j < row_count; ++j) {
        *sum++ += Dot(blocks + i * kBlockElements, blocks + j * kBlockElements, padded_count);
      }
    }
  }
}

}  // namespace

template <typename T>
void SegmentGram(const std::vector<const T*>& rows_R, const std::vector<Chunk>& chunks,
                 int64_t segment_count, const ParallelFor& parallel_for, double* gram_SRR) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  const int64_t pair_count = row_count * (row_count + 1) / 2;
  const int64_t chunk_count = static_cast<int64_t>(chunks.size());

  // Each chunk owns its partial sums, so no two threads ever add to the same number.
  std::vector<double> partial(chunk_count * pair_count, 0.0);
  parallel_for(chunk_count, AverageElements(chunks) * pair_count / 2,
               [&](int64_t first, int64_t last) {
                 std::vector<double> blocks(row_count * kBlockElements);
                 for (int64_t c = first; c < last; ++c) {
                   AddChunkGram(rows_R, chunks[c], blocks.data(), &partial[c * pair_count]);
                 }
               });

  // The chunks of a segment are added in order, by one thread.
  std::fill_n(gram_SRR, segment_count * row_count * row_count, 0.0);
  for (int64_t c = 0; c < chunk_count; ++c) {
    double* gram_RR = gram_SRR + chunks[c].segment * row_count * row_count;
    const double* sum = &partial[c * pair_count];
    for (int64_t i = 0; i < row_count; ++i) {
      for (int64_t j = i; j < row_count; ++j) gram_RR[i * row_count + j] += *sum++;
    }
  }
  for (int64_t s = 0; s < segment_count; ++s) {
    double* gram_RR = gram_SRR + s * row_count * row_count;
    for (int64_t i = 0; i < row_count; ++i) {
      for (int64_t j = 0; j < i; ++j) gram_RR[i * row_count + j] = gram_RR[j * row_count + i];
    }
  }
}

#define TF_ADASUM_INSTANTIATE(T)                                                                \
  template void SegmentGram<T>(const std::vector<const T*>&, const std::vector<Chunk>&, int64_t, \
                               const ParallelFor&, double*);
TF_ADASUM_INSTANTIATE(double)
TF_ADASUM_INSTANTIATE(float)
TF_ADASUM_INSTANTIATE(Half)
TF_ADASUM_INSTANTIATE(BFloat16)
#undef TF_ADASUM_INSTANTIATE

}  // namespace tf_adasum
