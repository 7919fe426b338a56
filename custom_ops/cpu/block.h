// Conversions of one block: a piece of a row that is small enough to stay in the first-level cache.
//
//     T           Wide<T>     sums
//     float16 ┐
//     bfloat16├─► float   ─┐
//     float   ┘            ├─► double ─► T    rounded once
//     double  ──► double  ─┘
//
// Widening is exact. The loops over products are in products.h, the loops over weighted sums in
// weighted_sum.cc.
#pragma once

#include <cstdint>

#include "element_types.h"

namespace tf_adasum {

constexpr int64_t kBlockElements = 480;  // slightly below 4 KiB as doubles; see kFloatProducts

template <typename T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename T>
using Wide = typename WideOf<T>::type;

// Returns `in` if its type is already wide. Otherwise widens its `count` elements into `scratch`,
// and returns `scratch`.
inline const double* Widened(const double* in, int64_t, double*) { return in; }
inline const float* Widened(const float* in, int64_t, float*) { return in; }
const float* Widened(const Half* in, int64_t count, float* scratch);
const float* Widened(const BFloat16* in, int64_t count, float* scratch);

// Returns `in` if it holds doubles. Otherwise converts its `count` floats to doubles in `scratch`,
// and returns `scratch`.
inline const double* AsDoubles(const double* in, int64_t, double*) { return in; }
const double* AsDoubles(const float* in, int64_t count, double* scratch);

// out[k] = in[k] rounded to nearest, ties to even.
void FromDoubles(const double* in, int64_t count, double* out);
void FromDoubles(const double* in, int64_t count, float* out);
void FromDoubles(const double* in, int64_t count, Half* out);
void FromDoubles(const double* in, int64_t count, BFloat16* out);

// Rounds floats in the same way. `count` is at most kBlockElements.
void FromFloats(const float* in, int64_t count, Half* out);
void FromFloats(const float* in, int64_t count, BFloat16* out);

}  // namespace tf_adasum
