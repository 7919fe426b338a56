// Computes a tile of the Gram matrix with fused multiply-adds. The threads share the elements; at
// each of its elements, a thread multiplies all pairs of rows.
#pragma once

#include "gram_sums.cuh"
#include "gram_tiles.cuh"
#include "packets.cuh"

namespace tf_adasum {

// A kDiagonal tile contains the products of all pairs among kRows rows (only the lower triangle). A
// kBelow tile contains the products of kRows rows with kRows other rows (all of them).
template <typename T, int kWidth, int kRows, TileKind kKind>
class FmaTile {
 public:
  using Element = T;
  using Compute = ComputeType<T>;
  static constexpr TileKind kTileKind = kKind;
  static constexpr int kTileRows = kRows;
  static constexpr int kCount =
      kKind == TileKind::kDiagonal ? kRows * (kRows + 1) / 2 : kRows * kRows;

  // Returns the row and the column of sum k inside the tile.
  __device__ static __forceinline__ GramPosition Position(int k) {
    if (kKind == TileKind::kDiagonal) return TrianglePosition(k);
    return {k / kRows, k % kRows};
  }

  // Adds the products of the elements [begin, end). All lanes of a warp must call it.
  __device__ __forceinline__ void Add(const TileRows<T>& rows, int64 begin, int64 end, Team team) {
    constexpr int kPacketsPerFlush = kMaxFloatProducts / kWidth;
    static_assert(kPacketsPerFlush % kPacketsInFlight == 0,
                  "the packets between two flushes are a multiple");
    const PacketRange<kWidth> range(begin, end);
    int packets = 0;
    // All lanes run the same number of iterations, because they flush together.
    for (int first = 0; first < range.packet_count; first += team.size * kPacketsInFlight) {
      PacketPosition positions[kPacketsInFlight];
#pragma unroll
      for (int u = 0; u < kPacketsInFlight; ++u) {
        const int k = first + u * team.size + team.thread;
        positions[u] = {range.Packet(k), k < range.packet_count};
      }
      AddPackets<kWidth>(rows, positions);
      packets += kPacketsInFlight;
      if (packets == kPacketsPerFlush) {
        sums_.Flush();
        packets = 0;
      }
    }
    if (range.end_count > 0) {
      const bool exists = team.thread < range.end_count;
      AddPackets<1>(rows, {{exists ? range.EndElement(team.thread) : begin, exists}});
    }
  }

  // Writes the kCount sums of the warp to `out`.
  __device__ __forceinline__ void Store(double* out) { sums_.Store(out); }

 private:
  // Number of packets of each row that a thread has in flight. (With four rows of a 16-bit type, a
  // second packet was not faster on an H200.)
  static constexpr int kPacketsInFlight = kRows == 2 || (kRows == 4 && kWidth == 4) ? 2 : 1;

  // The index of a packet's first element in each row, and whether the packet exists.
  struct PacketPosition {
    int64 element;
    bool exists;
  };

  template <int kPacketWidth>
  __device__ static __forceinline__ void LoadRows(const TileRows<T>& rows, int first_row,
                                                  PacketPosition position,
                                                  Packet<T, kPacketWidth> (&packets)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      packets[i] = position.exists && first_row + i < rows.row_count
                       ? LoadPacket<Memory::kGlobalStreaming, kPacketWidth>(
                             rows.rows_RN + (first_row + i) * rows.row_stride + position.element)
                       : ZeroPacket<T, kPacketWidth>();
    }
  }

  template <int kPacketWidth, int kPackets>
  __device__ __forceinline__ void AddPackets(const TileRows<T>& rows,
                                             const PacketPosition (&positions)[kPackets]) {
    Packet<T, kPacketWidth> x[kPackets][kRows];
#pragma unroll
    for (int u = 0; u < kPackets; ++u) {
      LoadRows<kPacketWidth>(rows, rows.first_row, positions[u], x[u]);
    }
    if constexpr (kKind == TileKind::kDiagonal) {
#pragma unroll
      for (int u = 0; u < kPackets; ++u) AddProducts<kPacketWidth>(x[u], x[u]);
    } else {
      Packet<T, kPacketWidth> y[kPackets][kRows];
#pragma unroll
      for (int u = 0; u < kPackets; ++u) {
        LoadRows<kPacketWidth>(rows, rows.first_column, positions[u], y[u]);
      }
#pragma unroll
      for (int u = 0; u < kPackets; ++u) AddProducts<kPacketWidth>(x[u], y[u]);
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
