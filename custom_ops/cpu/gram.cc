#include "gram.h"

#include <algorithm>
#include <type_traits>

#include "block.h"
#include "products.h"

namespace tf_adasum {
namespace {

// The distance between the rows of a block must not be a multiple of 4 KiB. Otherwise the rows
// would compete for the same cache sets.
constexpr int64_t kBlockStride = kBlockElements + 16;

// One block of every row as doubles. The number of entries is rounded up to whole tiles. The
// additional entries repeat the last row, and their products are discarded.
//
// The memory is thread-local and is reused by the next call, because the first access to new memory
// takes longer than the arithmetic.
class Block {
 public:
  explicit Block(int64_t row_count)
      : rows((row_count + kTriangleRows - 1) / kTriangleRows * kTriangleRows) {
    const size_t size = row_count * kBlockStride;
    if (memory_.size() < size) memory_.resize(size);
  }

  template <typename T>
  void Load(const std::vector<const T*>& rows_R, int64_t begin, int64_t count) {
    Wide<T> scratch[kBlockElements];
    for (size_t i = 0; i < rows_R.size(); ++i) {
      rows[i] =
          AsDoubles(Widened(rows_R[i] + begin, count, scratch), count, &memory_[i * kBlockStride]);
    }
    std::fill(rows.begin() + rows_R.size(), rows.end(), rows[rows_R.size() - 1]);
  }

  std::vector<const double*> rows;

 private:
  static thread_local std::vector<double> memory_;
};

thread_local std::vector<double> Block::memory_;

// The index of <rows[i], rows[j]>, i <= j, in the upper triangle: it follows the R, R - 1, …
// products of the rows above row i.
int64_t InTriangle(int64_t i, int64_t j, int64_t row_count) {
  return i * row_count - i * (i - 1) / 2 + (j - i);
}

// Adds the products of one block, tile by tile:
//
//     rows    0..3  4..7  8..11
//     0..3     ◥     ▤     ▤         ◥ a triangle of four rows
//     4..7           ◥     ▤         ▤ two rectangles of two rows by four
//     8..11                ◥
void AddTiles(const Tiles& tiles, const Block& block, int64_t row_count, int64_t count,
              double* products_P) {
  const auto keep = [&](int64_t i, int64_t j, double product) {
    if (i < row_count && j < row_count) products_P[InTriangle(i, j, row_count)] += product;
  };
  for (int64_t tile = 0; tile < row_count; tile += kTriangleRows) {
    double triangle[kTriangleProducts] = {};
    tiles.add_triangle(&block.rows[tile], count, triangle);
    const double* product = triangle;
    for (int64_t i = tile; i < tile + kTriangleRows; ++i) {
      for (int64_t j = i; j < tile + kTriangleRows; ++j) keep(i, j, *product++);
    }
    for (int64_t other = tile + kTriangleRows; other < row_count; other += kTriangleRows) {
      for (int64_t first = tile; first < tile + kTriangleRows; first += kRectangleRows) {
        double rectangle[kRectangleProducts] = {};
        tiles.add_rectangle(&block.rows[first], &block.rows[other], count, rectangle);
        product = rectangle;
        for (int64_t i = first; i < first + kRectangleRows; ++i) {
          for (int64_t j = other; j < other + kTriangleRows; ++j) keep(i, j, *product++);
        }
      }
    }
  }
}

// Two rows are multiplied directly, without a Block.
template <typename T>
void AddProductsOfTwo(const T* x, const T* y, const Chunk& chunk, double* products_3) {
  constexpr bool kIsWide = std::is_same_v<T, Wide<T>>;
  Wide<T> x_scratch[kIsWide ? 1 : kBlockElements], y_scratch[kIsWide ? 1 : kBlockElements];
  const int64_t step = kIsWide ? chunk.end - chunk.begin : kBlockElements;
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += step) {
    const int64_t count = std::min(step, chunk.end - begin);
    AddPairProducts(Widened(x + begin, count, x_scratch), Widened(y + begin, count, y_scratch),
                    count, products_3);
  }
}

// Prefetches the next block before the current one is multiplied, because blocks are too short for
// the hardware prefetcher. Prefetching past the end of a row has no effect.
template <typename T>
void Prefetch(const std::vector<const T*>& rows_R, int64_t begin) {
  constexpr int64_t kCacheLine = 64;
  for (const T* row : rows_R) {
    for (int64_t k = 0; k < kBlockElements; k += kCacheLine / sizeof(T)) {
      __builtin_prefetch(row + begin + k);
    }
  }
}

// More rows are multiplied tile by tile, while a block of every row is in the cache.
template <typename T>
void AddProductsOfMany(const std::vector<const T*>& rows_R, const Chunk& chunk,
                       double* products_P) {
  const Tiles& tiles = std::is_same_v<T, double> ? kTilesOfDoubles : kTilesOfFloats;
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  Block block(row_count);
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, chunk.end - begin);
    block.Load(rows_R, begin, count);
    Prefetch(rows_R, begin + kBlockElements);
    AddTiles(tiles, block, row_count, count, products_P);
  }
}

}  // namespace

template <typename T>
void ChunkProducts(const std::vector<const T*>& rows_R, const Chunk& chunk, double* products_P) {
  std::fill_n(products_P, rows_R.size() * (rows_R.size() + 1) / 2, 0.0);
  if (rows_R.size() == 2) {
    AddProductsOfTwo(rows_R[0], rows_R[1], chunk, products_P);
  } else {
    AddProductsOfMany(rows_R, chunk, products_P);
  }
}

template <typename T>
void SegmentGram(const std::vector<const T*>& rows_R, const std::vector<Chunk>& chunks,
                 int64_t segment_count, const ParallelFor& parallel_for, double* gram_SRR) {
  const int64_t row_count = static_cast<int64_t>(rows_R.size());
  const int64_t pair_count = row_count * (row_count + 1) / 2;
  const int64_t chunk_count = static_cast<int64_t>(chunks.size());

  // Each chunk has its own partial sums, so two threads never add to the same number.
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
