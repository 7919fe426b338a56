// Adasum of two vectors, per segment:   combined[s] = c_a a[s] + c_b b[s]
//
// Shape letters: S segments, N elements.
//
// Bytes: 5·N·sizeof(T): both vectors are read twice, because the coefficients need the whole of a
// segment, and the result is written once. As many whole segments as fit into the cache are reduced
// and then written at once, which leaves 3·N·sizeof(T) for the memory. A segment that is larger is
// written from its end: there the cache still holds it.
//
//     segments   |--0--|--1--|-2-|---------3---------|-4-|
//     groups     [      0        ][        1          ][ 2 ]
//
// Example: a = [1, 0, 3], b = [0, 2, 3], segments = [0, 2, 3]
//     segment 0: a·b = 0, so the sum, [1, 2]
//     segment 1: a = b, so the average, [3]
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
