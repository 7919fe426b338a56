// Inner products of short pieces of rows, summed in double.
//
// Sums are kept in SIMD lanes: lane l adds the products l, l + lanes, …, and the lanes are added
// pairwise at the end. So the order of additions is the same on every instruction set. The sums of
// a tile, a row of lanes each, and its operands just fit into sixteen registers of AVX2.
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

// The same with products in float, and sums of fifteen of them in float before they are added in
// double: twice as fast from the cache, with an error below 16·2^-24 ‖x‖‖y‖, a millionth. Only
// where squares neither leave the range of float nor vanish in it: see pairwise_combine.cc.
void AddPairProductsInFloat(const float* x, const float* y, int64_t count, double* sums);

// A triangle adds <x[i], x[j]> for all i <= j of four rows to sums[0..9], in row-major order. A
// rectangle adds <x[i], y[j]> of two rows and four to sums[4 i + j].
struct Tiles {
  void (*add_triangle)(const double* const* x, int64_t count, double* sums);
  void (*add_rectangle)(const double* const* x, const double* const* y, int64_t count,
                        double* sums);
};

extern const Tiles kTilesOfDoubles;
// The same, faster, for doubles whose products are exact because they were floats.
extern const Tiles kTilesOfFloats;

}  // namespace tf_adasum
