#include "gram.h"

#include <algorithm>
#include <type_traits>

#include "block.h"
#include "products.h"

namespace tf_adasum {
namespace {

// Rows of a block must not lie a multiple of 4 KiB apart: they would compete for the same lines of
// the cache.
constexpr int64_t kBlockStride = kBlockElements + kTileLanes;

// Two rows are read once and multiplied as they come.
template <typename T>
void PairProducts(const T* x, const T* y, const Chunk& chunk, double* products_3) {
  constexpr bool kIsWide = std::is_same_v<T, Wide<T>>;
  constexpr int64_t kScratch = kIsWide ? 1 : kBlockElements;
  Wide<T> x_scratch[kScratch], y_scratch[kScratch];
  const int64_t step = kIsWide ? chunk.end - chunk.begin : kBlockElements;
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += step) {
    const int64_t count = std::min(step, chunk.end - begin);
    AddPairProducts(Widened(x + begin, count, x_scratch), Widened(y + begin, count, y_scratch),
                    count, products_3);
  }
}

// Any number of rows: a block of each is widened to doubles, and stays in the cache while it is
// multiplied with the others, two rows by two.
template <typename T>
void TiledProducts(const std::vector<const T*>& rows_R, const Chunk& chunk, double* products_P) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  thread_local std::vector<double> blocks;
  blocks.resize(row_count * kBlockStride);
  // Beyond the last row of an odd number of rows, that row stands in; its products are not kept.
  const auto tile_at = [&](int64_t i) {
    return Tile{{&blocks[i * kBlockStride], &blocks[std::min(i + 1, row_count - 1) * kBlockStride]}};
  };
  Wide<T> scratch[kBlockElements];
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, chunk.end - begin);
    for (int64_t i = 0; i < row_count; ++i) {
      ToPaddedDoubles(Widened(rows_R[i] + begin, count, scratch), count, &blocks[i * kBlockStride]);
    }
    const auto add = std::is_same_v<T, double> ? AddTileProducts : AddTileProductsOfFloats;
    for (int64_t i = 0; i < row_count; i += kTileRows) {
      for (int64_t j = i; j < row_count; j += kTileRows) {
        double sums[kTileRows * kTileRows] = {};
        add(tile_at(i), tile_at(j), PaddedToLanes(count), sums);
        for (int64_t row = i; row < std::min(i + kTileRows, row_count); ++row) {
          for (int64_t column = std::max(j, row); column < std::min(j + kTileRows, row_count);
               ++column) {
            // Row i of the upper triangle starts after the R + (R - 1) + … numbers of those above.
            const int64_t start = row * row_count - row * (row - 1) / 2 - row;
            products_P[start + column] += sums[(row - i) * kTileRows + column - j];
          }
        }
      }
    }
  }
}

}  // namespace

template <typename T>
void ChunkProducts(const std::vector<const T*>& rows_R, const Chunk& chunk, double* products_P) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  std::fill_n(products_P, row_count * (row_count + 1) / 2, 0.0);
  if (row_count == 2) {
    PairProducts(rows_R[0], rows_R[1], chunk, products_P);
  } else {
    TiledProducts(rows_R, chunk, products_P);
  }
}

template <typename T>
void SegmentGram(const std::vector<const T*>& rows_R, const std::vector<Chunk>& chunks,
                 int64_t segment_count, const ParallelFor& parallel_for, double* gram_SRR) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  const int64_t pair_count = row_count * (row_count + 1) / 2;
  const int64_t chunk_count = static_cast<int64_t>(chunks.size());

  // Each chunk owns its partial sums, so no two threads ever add to the same number.
  std::vector<double> products_CP(chunk_count * pair_count);
  parallel_for(chunk_count, AverageElements(chunks) * pair_count / 2,
               [&](int64_t first, int64_t last) {
                 for (int64_t c = first; c < last; ++c) {
                   ChunkProducts(rows_R, chunks[c], &products_CP[c * pair_count]);
                 }
               });

  // The chunks of a segment are added in order, by one thread.
  std::fill_n(gram_SRR, segment_count * row_count * row_count, 0.0);
  for (int64_t c = 0; c < chunk_count; ++c) {
    double* gram_RR = gram_SRR + chunks[c].segment * row_count * row_count;
    const double* product = &products_CP[c * pair_count];
    for (int64_t i = 0; i < row_count; ++i) {
      for (int64_t j = i; j < row_count; ++j) gram_RR[i * row_count + j] += *product++;
    }
  }
  for (int64_t s = 0; s < segment_count; ++s) {
    double* gram_RR = gram_SRR + s * row_count * row_count;
    for (int64_t i = 0; i < row_count; ++i) {
      for (int64_t j = 0; j < i; ++j) gram_RR[i * row_count + j] = gram_RR[j * row_count + i];
    }
  }
}

#define TF_ADASUM_INSTANTIATE(T)                                                                 \
  template void SegmentGram<T>(const std::vector<const T*>&, const std::vector<Chunk>&, int64_t, \
                               const ParallelFor&, double*);                                     \
  template void ChunkProducts<T>(const std::vector<const T*>&, const Chunk&, double*);
TF_ADASUM_INSTANTIATE(double)
TF_ADASUM_INSTANTIATE(float)
TF_ADASUM_INSTANTIATE(Half)
TF_ADASUM_INSTANTIATE(BFloat16)
#undef TF_ADASUM_INSTANTIATE

}  // namespace tf_adasum
