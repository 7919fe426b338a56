// The two passes of Adasum over one chunk of a pair, in the fastest arithmetic that is right.
//
// For float and the 16-bit types that is float, with sums in double, as long as squares keep well
// within float's range; else, and for double, it is double throughout.
#ifndef TF_ADASUM_KERNELS_PAIRWISE_CHUNK_H_
#define TF_ADASUM_KERNELS_PAIRWISE_CHUNK_H_

#include "chunks.h"

namespace tf_adasum {

// Inner products of a part of a pair: aa = ‖a‖², ab = a·b, bb = ‖b‖².
struct PairSums {
  double aa = 0, ab = 0, bb = 0;
  bool in_float = true;  // whether float holds the part's squares
};

template <typename T>
PairSums SumPair(const T* a_N, const T* b_N, const Chunk& chunk);

// combined = of_a · a + of_b · b; `combined_N` may be `a_N` or `b_N`.
template <typename T>
void CombinePairOf(const T* a_N, const T* b_N, const Chunk& chunk, double of_a, double of_b,
                   bool in_float, T* combined_N);

}  // namespace tf_adasum

#endif  // TF_ADASUM_KERNELS_PAIRWISE_CHUNK_H_
