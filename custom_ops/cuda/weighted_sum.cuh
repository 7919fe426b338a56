// Computes weighted sums of rows, per segment:   combined[k] = Σ_i coefficients[s][i] · rows[i][k]
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
//
// Memory traffic: every row is read once and the result is written once, (R + 1)·N·sizeof(T) bytes.
//
// Example: R = 2, segments = [0, 2, 3], rows = [[1, 2, 3], [4, 5, 6]],
//          coefficients = [[1, 1], [2, 0]]
//     combined = [1 + 4, 2 + 5, 2·3] = [5, 7, 6]
#pragma once

#include "kernel_arguments.h"
#include "packets.cuh"
#include "teams.cuh"

namespace tf_adasum {

// A thread has one packet of each of this many rows in flight.
constexpr int kRowsInFlight = 4;

template <typename T, int kWidth>
__device__ __forceinline__ void WriteWeightedSum(const T* rows_RN, int64 row_stride, int row_count,
                                                 const double* coefficients_R, T* combined_N,
                                                 int64 begin, int64 end, Team team) {
  using Compute = ComputeType<T>;
  const PacketRange<kWidth> range(begin, end);
  for (int k = team.thread; k < range.packet_count; k += team.size) {
    Compute sum[kWidth] = {};
    for (int first_row = 0; first_row < row_count; first_row += kRowsInFlight) {
      Packet<T, kWidth> packet[kRowsInFlight];
#pragma unroll
      for (int u = 0; u < kRowsInFlight; ++u) {
        const int row = first_row + u;
        packet[u] = row < row_count ? LoadPacket<Memory::kGlobalStreaming, kWidth>(
                                          rows_RN + row * row_stride + range.Packet(k))
                                    : ZeroPacket<T, kWidth>();
      }
#pragma unroll
      for (int u = 0; u < kRowsInFlight; ++u) {
        const int row = first_row + u;
        const Compute coefficient =
            row < row_count ? static_cast<Compute>(coefficients_R[row]) : Compute{0};
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += coefficient * Widen(packet[u].elements[j]);
      }
    }
    Packet<T, kWidth> rounded;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) Round(sum[j], &rounded.elements[j]);
    StorePacket(combined_N + range.Packet(k), rounded);
  }
  if (team.thread < range.end_count) {
    const int64 k = range.EndElement(team.thread);
    Compute sum = 0;
    for (int row = 0; row < row_count; ++row) {
      sum += static_cast<Compute>(coefficients_R[row]) * Widen(rows_RN[row * row_stride + k]);
    }
    Round(sum, &combined_N[k]);
  }
}

template <typename T, int kWidth>
__device__ __forceinline__ void SegmentWeightedSum(const T* rows_RN, int64 row_stride,
                                                   int row_count, const double* coefficients_SR,
                                                   T* combined_N, const PartitionMap& map) {
  const int partition = blockIdx.x;
  const int first_small = map.first_small_piece[partition];
  for (int p = map.first_piece[partition]; p < first_small; ++p) {
    const Piece piece = map.pieces[p];
    WriteWeightedSum<T, kWidth>(rows_RN, row_stride, row_count,
                                coefficients_SR + static_cast<int64>(piece.segment) * row_count,
                                combined_N, piece.begin, piece.end, BlockTeam<kBlockThreads>());
  }
  const int last = map.first_piece[partition + 1];
  for (int p = first_small + Warp(); p < last; p += kBlockWarps) {
    const Piece piece = map.pieces[p];
    WriteWeightedSum<T, kWidth>(rows_RN, row_stride, row_count,
                                coefficients_SR + static_cast<int64>(piece.segment) * row_count,
                                combined_N, piece.begin, piece.end, WarpTeam());
  }
}

}  // namespace tf_adasum
