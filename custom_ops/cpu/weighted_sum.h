// Linear combination of rows, per segment:   combined[s] = Σ_i coefficients[s][i] · rows[i][s]
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
//
// Memory traffic: (R + 1)·N·sizeof(T) bytes. Every row is read once and the result is written once.
//
// Example: R = 2, N = 3, segments = [0, 2, 3], rows = [[1, 2, 3], [4, 5, 6]],
//          coefficients = [[1, 0.5], [0, 2]]
//     combined = [1·1 + 0.5·4, 1·2 + 0.5·5, 0·3 + 2·6] = [3, 4.5, 12]
#pragma once

#include <cstdint>
#include <vector>

#include "chunks.h"

namespace tf_adasum {

// The terms are added in double, in row order, and the sum is rounded to T once. `combined_N` may
// be one of the rows, because a block is read from all rows before it is written.
template <typename T>
void SegmentWeightedSum(const std::vector<const T*>& rows_R, const double* coefficients_SR,
                        const std::vector<Chunk>& chunks, const ParallelFor& parallel_for,
                        T* combined_N);

// The same for one chunk, with the coefficients of its segment.
template <typename T>
void ChunkWeightedSum(const std::vector<const T*>& rows_R, const double* coefficients_R,
                      const Chunk& chunk, T* combined_N);

}  // namespace tf_adasum
