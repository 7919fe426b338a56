// Inner products of short pieces of rows, summed in double.
//
// Sums are kept in lanes: lane l adds the products l, l + kLanes, …, and the lanes are added
// pairwise at the end. So the order of additions is the same on every instruction set.
#ifndef TF_ADASUM_KERNELS_PRODUCTS_H_
#define TF_ADASUM_KERNELS_PRODUCTS_H_

#include <cstdint>

namespace tf_adasum {

// <x, x>, <x, y> and <y, y> of `count` elements are added to sums[0], sums[1], sums[2].
void AddPairProducts(const float* x, const float* y, int64_t count, double* sums_3);
void AddPairProducts(const double* x, const double* y, int64_t count, double* sums_3);

// A tile is two rows of a block as doubles. Its `count` columns are padded with zeros to a multiple
// of kTileLanes.
constexpr int64_t kTileRows = 2;
constexpr int64_t kTileLanes = 8;
constexpr int64_t PaddedToLanes(int64_t count) {
  return (count + kTileLanes - 1) / kTileLanes * kTileLanes;
}

// out[k] = in[k], followed by zeros up to PaddedToLanes(count).
void ToPaddedDoubles(const float* in, int64_t count, double* out);
void ToPaddedDoubles(const double* in, int64_t count, double* out);

// <x[i], y[j]> is added to sums[2 i + j] for i, j = 0, 1.
struct Tile {
  const double* rows[kTileRows];
};
void AddTileProducts(const Tile& x, const Tile& y, int64_t padded_count, double* sums_4);
// The same where all elements were floats: faster, with the same bits.
void AddTileProductsOfFloats(const Tile& x, const Tile& y, int64_t padded_count, double* sums_4);

}  // namespace tf_adasum

#endif  // TF_ADASUM_KERNELS_PRODUCTS_H_
