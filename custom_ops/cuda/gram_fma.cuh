// A tile of the Gram matrix by fused multiply-adds: every thread multiplies all pairs of rows at
// its own elements.
#pragma once

#include "gram_sums.cuh"
#include "gram_tiles.cuh"
#include "packets.cuh"

namespace tf_adasum {

// kDiagonal: the products of kRows rows with themselves, the lower triangle. kBelow: the products
// of kRows rows with kRows others, all of them.
template <typename T, int kWidth, int kRows, TileKind kKind>
class FmaTile {
 public:
  using Element = T;
  using Compute = ComputeType<T>;
  static constexpr TileKind kTileKind = kKind;
  static constexpr int kTileRows = kRows;
  static constexpr int kCount =
      kKind == TileKind::kDiagonal ? kRows * (kRows + 1) / 2 : kRows * kRows;

  // Row and column in the tile of sum k.
  __device__ static __forceinline__ GramPosition Position(int k) {
    if (kKind == TileKind::kDiagonal) return TrianglePosition(k);
    return {k / kRows, k % kRows};
  }

  // Adds the products of the elements [begin, end). Called by all lanes of a warp.
  __device__ __forceinline__ void Add(const TileRows<T>& rows, int64 begin, int64 end, Team team) {
    constexpr int kPacketsPerFlush = kInnerProducts / kWidth;
    const PacketRange<kWidth> range(begin, end);
    int packets = 0;
    // All lanes make the same number of turns, because they flush together.
    for (int first = 0; first < range.packet_count; first += team.size) {
      const int k = first + team.thread;
      AddPacket<kWidth>(rows, range.Packet(k), k < range.packet_count);
      if (++packets == kPacketsPerFlush) {
        sums_.Flush();
        packets = 0;
      }
    }
    if (range.end_count > 0) {
      const bool exists = team.thread < range.end_count;
      AddPacket<1>(rows, exists ? range.EndElement(team.thread) : begin, exists);
    }
  }

  // Writes the kCount sums of the warp.
  __device__ __forceinline__ void Leave(double* out) { sums_.Leave(out); }

 private:
  template <int kPacketWidth>
  __device__ static __forceinline__ void LoadRows(const TileRows<T>& rows, int first_row,
                                                  int64 element, bool exists,
                                                  Packet<T, kPacketWidth> (&packets)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      packets[i] = exists && first_row + i < rows.row_count
                       ? LoadPacket<Memory::kGlobalOnce, kPacketWidth>(
                             rows.rows_RN + (first_row + i) * rows.row_stride + element)
                       : ZeroPacket<T, kPacketWidth>();
    }
  }

  template <int kPacketWidth>
  __device__ __forceinline__ void AddPacket(const TileRows<T>& rows, int64 element, bool exists) {
    Packet<T, kPacketWidth> x[kRows];
    LoadRows<kPacketWidth>(rows, rows.first_row, element, exists, x);
    if constexpr (kKind == TileKind::kDiagonal) {
      AddProducts<kPacketWidth>(x, x);
    } else {
      Packet<T, kPacketWidth> y[kRows];
      LoadRows<kPacketWidth>(rows, rows.first_column, element, exists, y);
      AddProducts<kPacketWidth>(x, y);
    }
  }

  template <int kPacketWidth>
  __device__ __forceinline__ void AddProducts(const Packet<T, kPacketWidth> (&x)[kRows],
                                              const Packet<T, kPacketWidth> (&y)[kRows]) {
#pragma unroll
    for (int e = 0; e < kPacketWidth; ++e) {
      int k = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < (kKind == TileKind::kDiagonal ? i + 1 : kRows); ++j) {
          sums_.running[k++] += Widen(x[i].elements[e]) * Widen(y[j].elements[e]);
        }
      }
    }
  }

  GramSums<Compute, kCount> sums_;
};

}  // namespace tf_adasum
