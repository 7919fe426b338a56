// Inner products of the rows, per segment:   G[s][i][j] = <rows[i][s], rows[j][s]>
//
// Shape letters: S segments, R rows (replicas), N elements in a row, C chunks, P = R (R + 1) / 2
// pairs of rows.
//
// Memory traffic: every row is read once, R·N·sizeof(T) bytes. The 8·S·R² bytes of the result are
// few in comparison.
//
// Example: R = 2, N = 3, segments = [0, 2, 3], rows = [[1, 2, 3], [4, 5, 6]]
//     G[0] = [[1·1 + 2·2, 1·4 + 2·5], [14, 4·4 + 5·5]] = [[5, 14], [14, 41]]
//     G[1] = [[9, 18], [18, 36]]
#pragma once

#include <cstdint>
#include <vector>

#include "chunks.h"

namespace tf_adasum {

// Products are computed and added in double. The products are exact for every T except double.
template <typename T>
void SegmentGram(const std::vector<const T*>& rows_R, const std::vector<Chunk>& chunks,
                 int64_t segment_count, const ParallelFor& parallel_for, double* gram_SRR);

// Computes the products of one chunk: <rows[i], rows[j]> for all i <= j, in row-major order.
template <typename T>
void ChunkProducts(const std::vector<const T*>& rows_R, const Chunk& chunk, double* products_P);

}  // namespace tf_adasum
