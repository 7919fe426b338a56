// Computes a tile of the Gram matrix on tensor cores, for the 16-bit types. For 16 columns
// (elements) of 16 input rows, a warp executes one instruction for every 8 columns of the tile.
//
// In D += A B (see intrinsics.cuh), the rows of A and the columns of B are both input rows. The
// fragments of A and B have the same layout: lane l holds elements of row l / 4. So one load serves
// both. The elements may be added in any order if A and B use the same order. So each lane loads 8
// consecutive elements with one 16-byte instruction, and uses them as the elements k = 2t, 2t + 1,
// 2t + 8, 2t + 9 (t = l % 4) of two multiplications.
//
// Accuracy: products of 16-bit numbers are exact in float. A tensor core adds 16 products at once
// and truncates the sum, so the sums are added to doubles after every 8 multiplications. The error
// is below 128·2^-24 for every order of the additions.
#pragma once

#include "gram_tiles.cuh"
#include "packets.cuh"
#include "teams.cuh"

namespace tf_adasum {

// kAligned means that all rows begin at a multiple of 16 bytes. kRows is 8 or 16.
template <typename T, bool kAligned, int kRows, TileKind kKind>
class MmaTile {
 public:
  using Element = T;
  static constexpr TileKind kTileKind = kKind;
  static constexpr int kTileRows = kRows;
  static constexpr int kCount = kRows * kRows;

  __device__ static __forceinline__ GramPosition Position(int k) { return {k / kRows, k % kRows}; }

  // Adds the products of the elements [begin, end). All lanes of a warp must call it.
  __device__ __forceinline__ void Add(const TileRows<T>& rows, int64 begin, int64 end, Team team) {
    const int group = Lane() / kLanesPerRow;
    const int64 lane_column = Lane() % kLanesPerRow * kColumns;
    const int64 warps = team.size / kWarpThreads;
    const int64 warp = team.thread / kWarpThreads;
    const int64 aligned_begin = begin / kColumns * kColumns;
    for (int64 first = aligned_begin + warp * kRoundColumns; first < end;
         first += warps * kRoundColumns) {
      const bool whole = kAligned && first >= begin && first + kRoundColumns <= end;
      uint4 x[kLoads][kGroups];
      uint4 y[kLoads][kGroups];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int64 column = first + u * kLoadColumns + lane_column;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const int row = group + 8 * g;
          x[u][g] = LoadColumns(rows, rows.first_row + row, column, begin, end, whole);
          if constexpr (kKind == TileKind::kBelow) {
            y[u][g] = LoadColumns(rows, rows.first_column + row, column, begin, end, whole);
          }
        }
      }
      float sums[kGroups][4] = {};
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        Multiply(x[u], kKind == TileKind::kBelow ? y[u] : x[u], sums);
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int k = 0; k < kUsed; ++k) totals_[g][k] += static_cast<double>(sums[g][k]);
      }
    }
  }

  // Writes the kCount sums of the warp to `out`.
  __device__ __forceinline__ void Store(double* out) {
    const int row = Lane() / kLanesPerRow;
    const int column = Lane() % kLanesPerRow * 2;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int k = 0; k < kUsed; ++k) {
        out[(row + k / 2 * 8) * kRows + 8 * g + column + k % 2] = totals_[g][k];
      }
    }
  }

 private:
  static constexpr int kGroups = kRows / 8;  // groups of 8 rows
  // Used entries of a lane's D fragment. In a tile of 8 rows, the others belong to rows 8..15.
  static constexpr int kUsed = kRows == 8 ? 2 : 4;
  static constexpr int kLanesPerRow = 4;
  static constexpr int kColumns = 8;  // per load of a lane
  static constexpr int kLoadColumns = kLanesPerRow * kColumns;
  static constexpr int kLoads = 4;  // in flight, per row
  static constexpr int kRoundColumns = kLoads * kLoadColumns;

  // Returns the elements [column, column + 8) of a row, with zeros outside [begin, end).
  __device__ static __forceinline__ uint4 LoadColumns(const TileRows<T>& rows, int row,
                                                      int64 column, int64 begin, int64 end,
                                                      bool whole) {
    Packet<T, kColumns> packet = ZeroPacket<T, kColumns>();
    if (row < rows.row_count) {
      const T* from = rows.rows_RN + row * rows.row_stride + column;
      if (whole) {
        packet = LoadPacket<Memory::kGlobalStreaming, kColumns>(from);
      } else {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          if (column + j >= begin && column + j < end) packet.elements[j] = from[j];
        }
      }
    }
    uint4 bits;
    memcpy(&bits, &packet, sizeof(bits));
    return bits;
  }

  __device__ static __forceinline__ void Multiply(const uint4 (&x)[kGroups],
                                                  const uint4 (&y)[kGroups],
                                                  float (&sums)[kGroups][4]) {
    const uint4 upper = x[0];
    const uint4 lower = kGroups == 2 ? x[kGroups - 1] : uint4{0, 0, 0, 0};
    const unsigned a_first[4] = {upper.x, lower.x, upper.y, lower.y};
    const unsigned a_second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const unsigned b_first[2] = {y[g].x, y[g].y};
      const unsigned b_second[2] = {y[g].z, y[g].w};
      Mma(sums[g], a_first, b_first, T{});
      Mma(sums[g], a_second, b_second, T{});
    }
  }

  double totals_[kGroups][kUsed] = {};
};

}  // namespace tf_adasum
