// Inner products of short pieces of rows, summed in double.
//
// Sums are kept in SIMD lanes: lane l adds the products l, l + lanes, …, and the lanes are added
// pairwise at the end. So the order of additions is the same with every instruction set. The sums
// of a tile (one vector of lanes for each product) and its operands just fit into the sixteen
// registers of AVX2.
#pragma once

#include <cstdint>

namespace tf_adasum {

constexpr int64_t kTriangleRows = 4;
constexpr int64_t kTriangleProducts = kTriangleRows * (kTriangleRows + 1) / 2;
constexpr int64_t kRectangleRows = 2;
constexpr int64_t kRectangleProducts = kRectangleRows * kTriangleRows;

// Adds <x, x>, <x, y>, <y, y> to sums[0..2].
void AddPairProducts(const float* x, const float* y, int64_t count, double* sums);
void AddPairProducts(const double* x, const double* y, int64_t count, double* sums);

// The same with products in float. Each lane adds fifteen products in float, and then adds their
// sum in double. This is twice as fast if the data is in the cache, with an error below
// 16·2^-24 ‖x‖‖y‖ (a millionth). Call it only if the squares neither overflow nor underflow in
// float; see pairwise_combine.cc.
void AddPairProductsInFloat(const float* x, const float* y, int64_t count, double* sums);

// A triangle adds <x[i], x[j]> of four rows, for all i <= j, to sums[0..9] in row-major order. A
// rectangle adds <x[i], y[j]> of two rows x and four rows y to sums[4 i + j].
struct Tiles {
  void (*add_triangle)(const double* const* x, int64_t count, double* sums);
  void (*add_rectangle)(const double* const* x, const double* const* y, int64_t count,
                        double* sums);
};

extern const Tiles kTilesOfDoubles;
// A faster version for doubles that were converted from floats, so that their products are exact.
extern const Tiles kTilesOfFloats;

}  // namespace tf_adasum
