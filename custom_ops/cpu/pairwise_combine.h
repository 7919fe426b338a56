// Adasum of two vectors, per segment:   combined[s] = c_a a[s] + c_b b[s]
//
// Shape letters: S segments, N elements.
//
// Memory traffic: 5·N·sizeof(T) bytes. Both vectors are read twice, because the coefficients depend
// on the whole segment, and the result is written once. For a group of whole segments that fits
// into the cache, the second read comes from the cache, so 3·N·sizeof(T) bytes remain. A segment
// that is larger than the cache is written from its end, because the cache still holds the end.
//
//     segments   |--0--|--1--|-2-|---------3---------|-4-|
//     groups     [      0        ][        1          ][ 2 ]
//
// Example: a = [1, 0, 3], b = [0, 2, 3], segments = [0, 2, 3]
//     segment 0: a·b = 0, so the result is the sum, [1, 2]
//     segment 1: a = b, so the result is the average, [3]
#pragma once

#include <cstdint>
#include <vector>

#include "chunks.h"

namespace tf_adasum {

// `combined_N` may be `a_N` or `b_N`.
template <typename T>
void PairwiseCombine(const T* a_N, const T* b_N, const std::vector<Chunk>& chunks,
                     const ParallelFor& parallel_for, T* combined_N);

}  // namespace tf_adasum
