// Divides the Gram matrix of many rows into tiles. A thread block computes one tile.
//
//     rows  0..15  | D |
//     rows 16..31  | B | D |
//     rows 32..39  | B | B | D |
//
// Here R = 40 rows are divided into groups of 16. A diagonal tile (D) contains the products of a
// group of rows with itself; only its lower triangle is needed. A tile below the diagonal (B)
// contains the products of two groups of rows.
//
// Up to 16 rows (8 rows for doubles, and for 16-bit types without tensor cores) form one diagonal
// tile, and every row is read once.
#pragma once

#include "element_types.cuh"

namespace tf_adasum {

enum class TileKind { kDiagonal, kBelow };

struct GramPosition {
  int row;
  int column;
};

// Returns the position of entry k of a lower triangle in row-major order: entry 0 is (0, 0), entry
// 1 is (1, 0), entry 2 is (1, 1), …
__device__ __forceinline__ GramPosition TrianglePosition(int k) {
  int row = 0;
  int before = 0;  // entries in the rows above
  while (before + row + 1 <= k) before += ++row;
  return {row, k - before};
}

__device__ __forceinline__ int64 TriangleSize(int64 row_count) {
  return row_count * (row_count + 1) / 2;
}

// The rows that a tile multiplies: the rows from first_row on with the rows from first_column on.
// Rows from row_count on count as zero.
template <typename T>
struct TileRows {
  const T* rows_RN;
  int64 row_stride;
  int row_count;
  int first_row;
  int first_column;
};

// Returns the number of tiles of one kind.
template <typename Tile>
__device__ __forceinline__ int TileCount(int row_count) {
  const int groups = (row_count + Tile::kTileRows - 1) / Tile::kTileRows;
  return Tile::kTileKind == TileKind::kDiagonal ? groups : groups * (groups - 1) / 2;
}

// Returns the two groups of rows that tile k of this kind multiplies.
template <typename Tile>
__device__ __forceinline__ GramPosition TilePosition(int k) {
  if (Tile::kTileKind == TileKind::kDiagonal) return {k, k};
  const GramPosition below = TrianglePosition(k);
  return {below.row + 1, below.column};
}

}  // namespace tf_adasum
