// Computes the inner products of rows, per segment:   G[s][i][j] = <rows[i][s], rows[j][s]>
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
//
// Memory traffic: with one tile (see gram_tiles.cuh) every row is read once, R·N·sizeof(T) bytes.
// The results are small in comparison, 8·S·R² bytes. With more tiles, a row is read once for each
// group of rows. The blocks of one partition run next to each other and find the row in L2.
//
// Example: R = 2, N = 3, segments = [0, 2, 3], rows = [[1, 2, 3], [4, 5, 6]]
//     G[0] = [[1·1 + 2·2, 1·4 + 2·5], [14, 4·4 + 5·5]] = [[5, 14], [14, 41]]
//     G[1] = [[9, 18], [18, 36]]
#pragma once

#include "gram_tiles.cuh"
#include "kernel_arguments.h"
#include "teams.cuh"

namespace tf_adasum {

__device__ __forceinline__ void WriteSymmetric(double* gram_SRR, int segment, int row_count,
                                               GramPosition at, double value) {
  double* gram_RR = gram_SRR + static_cast<int64>(segment) * row_count * row_count;
  gram_RR[static_cast<int64>(at.row) * row_count + at.column] = value;
  gram_RR[static_cast<int64>(at.column) * row_count + at.row] = value;
}

template <typename Tile>
__device__ __forceinline__ void StoreGramSum(const Piece& piece,
                                             const TileRows<typename Tile::Element>& rows, int k,
                                             double value, GramResults results) {
  const GramPosition in_tile = Tile::Position(k);
  const GramPosition at = {rows.first_row + in_tile.row, rows.first_column + in_tile.column};
  if (at.row >= rows.row_count || at.column > at.row) return;
  if (piece.slot == kWholeSegment) {
    WriteSymmetric(results.gram_SRR, piece.segment, rows.row_count, at, value);
  } else {
    double* slot_sums = results.slot_sums + piece.slot * TriangleSize(rows.row_count);
    slot_sums[TriangleSize(at.row) + at.column] = value;
  }
}

// Computes one tile of one partition. An empty segment has a piece without elements, whose sums are
// zero.
template <typename Tile, typename T = typename Tile::Element>
__device__ __forceinline__ void SegmentGram(const T* rows_RN, int64 row_stride, int row_count,
                                            const PartitionMap& map, GramResults results) {
  TF_ADASUM_SHARED_ARRAY(double, warp_sums, (kBlockWarps * Tile::kCount));
  double* const my_warp_sums = warp_sums + Warp() * Tile::kCount;
  const int tile_count = TileCount<Tile>(row_count);
  const int partition = static_cast<int>(blockIdx.x) / tile_count;
  const GramPosition group = TilePosition<Tile>(static_cast<int>(blockIdx.x) % tile_count);
  const TileRows<T> rows = {rows_RN, row_stride, row_count, group.row * Tile::kTileRows,
                            group.column * Tile::kTileRows};

  const int first_small = map.first_small_piece[partition];
  for (int p = map.first_piece[partition]; p < first_small; ++p) {
    const Piece piece = map.pieces[p];
    Tile tile;
    tile.Add(rows, piece.begin, piece.end, BlockTeam<kBlockThreads>());
    tile.Store(my_warp_sums);
    __syncthreads();
    for (int k = threadIdx.x; k < Tile::kCount; k += kBlockThreads) {
      double sum = 0;
#pragma unroll
      for (int warp = 0; warp < kBlockWarps; ++warp) sum += warp_sums[warp * Tile::kCount + k];
      StoreGramSum<Tile>(piece, rows, k, sum, results);
    }
    __syncthreads();
  }
  const int last = map.first_piece[partition + 1];
  for (int p = first_small + Warp(); p < last; p += kBlockWarps) {
    const Piece piece = map.pieces[p];
    Tile tile;
    tile.Add(rows, piece.begin, piece.end, WarpTeam());
    tile.Store(my_warp_sums);
    __syncwarp();
    for (int k = Lane(); k < Tile::kCount; k += kWarpThreads) {
      StoreGramSum<Tile>(piece, rows, k, my_warp_sums[k], results);
    }
    __syncwarp();
  }
}

// Adds the slots of the split segments. One warp adds one entry of the triangle of one segment.
__device__ __forceinline__ void SegmentGramFinish(int row_count, const PartitionMap& map,
                                                  GramResults results) {
  const int64 entries = TriangleSize(row_count);
  const int64 sum_index = static_cast<int64>(blockIdx.x) * kBlockWarps + Warp();
  if (sum_index >= entries * map.split_count) return;
  const Piece piece = map.pieces[map.split_pieces[sum_index / entries]];
  const int entry = static_cast<int>(sum_index % entries);
  double sums[1] = {0};
  for (int slot = Lane(); slot < piece.slot_count; slot += kWarpThreads) {
    sums[0] += results.slot_sums[(piece.first_slot + slot) * entries + entry];
  }
  SumOverWarp(sums);
  if (Lane() == 0) {
    WriteSymmetric(results.gram_SRR, piece.segment, row_count, TrianglePosition(entry), sums[0]);
  }
}

}  // namespace tf_adasum
