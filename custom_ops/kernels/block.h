// Loops over one block: a piece of a row small enough to stay in the first-level cache as doubles.
//
// Every kernel converts a block of its element type to doubles, computes there, and rounds at most
// once.
#ifndef TF_ADASUM_KERNELS_BLOCK_H_
#define TF_ADASUM_KERNELS_BLOCK_H_

#include <cstdint>

#include "element_types.h"

namespace tf_adasum {

constexpr int64_t kBlockElements = 512;  // 4 KiB as doubles
constexpr int64_t kLanes = 16;           // independent partial sums of a product; divides a block

// Number of doubles that `count` elements occupy once padded with zeros to whole groups of lanes.
constexpr int64_t PaddedToLanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// <x, y> of `padded_count` doubles, a multiple of kLanes. Lane l sums the products l, l + kLanes,
// …; the lanes are then added pairwise, so the order of additions is the same on every instruction
// set.
double Dot(const double* x, const double* y, int64_t padded_count);

#define TF_ADASUM_DECLARE_BLOCK_LOOPS(T)                                              \
  /* out[k] = in[k], followed by zeros up to PaddedToLanes(count). */                 \
  void ToDoubles(const T* in, int64_t count, double* out);                            \
  /* sum[k] += scale · in[k] */                                                       \
  void AddScaled(double scale, const T* in, int64_t count, double* sum);              \
  /* out[k] = in[k] rounded to nearest, ties to even. */                              \
  void FromDoubles(const double* in, int64_t count, T* out);

TF_ADASUM_DECLARE_BLOCK_LOOPS(double)
TF_ADASUM_DECLARE_BLOCK_LOOPS(float)
TF_ADASUM_DECLARE_BLOCK_LOOPS(Half)
TF_ADASUM_DECLARE_BLOCK_LOOPS(BFloat16)
#undef TF_ADASUM_DECLARE_BLOCK_LOOPS

}  // namespace tf_adasum

#endif  // TF_ADASUM_KERNELS_BLOCK_H_
