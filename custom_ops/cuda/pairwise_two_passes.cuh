// Pairwise combination in two kernels: one reduces, the next one writes.
//
//     pass 1   reads a and b, leaves a·a, a·b and b·b of each segment
//     pass 2   reads a and b backwards, writes combined
//
// Bytes: 5·N·sizeof(T), less what pass 2 still finds in L2: it walks all that pass 1 walked in the
// opposite order.
//
// Example: a = [1, 0, 3], b = [0, 2, 3], segments = [0, 2, 3]
//     segment 0: sums (1, 0, 4), coefficients (1, 1), combined [1, 2]
//     segment 1: sums (9, 9, 9), coefficients (1/2, 1/2), combined [3]
#pragma once

#include "../pairwise_coefficients.h"
#include "kernel_arguments.h"
#include "pairwise_ranges.cuh"
#include "teams.cuh"

namespace tf_adasum {

// Where the operands are: both passes ask it for a range, and it knows the memory.
template <typename T, int kWidth>
struct PairInGlobalMemory {
  const T* a_N;
  const T* b_N;

  __device__ __forceinline__ void AddSums(int64 begin, int64 end, Team team,
                                          double (&sums)[kPairSums]) const {
    AddPairSums<Memory::kGlobalAgain, kWidth>(a_N, b_N, begin, end, team, sums);
  }
  __device__ __forceinline__ void Write(T* combined_N, int64 begin, int64 end, Team team,
                                        PairCoefficients coefficients) const {
    WriteCombined<Memory::kGlobalOnce, kWidth>(a_N, b_N, combined_N, begin, end, team,
                                               static_cast<ComputeType<T>>(coefficients.of_a),
                                               static_cast<ComputeType<T>>(coefficients.of_b));
  }
};

__device__ __forceinline__ PairCoefficients CoefficientsOf(const double (&sums)[kPairSums]) {
  return CoefficientsOfPair(sums[kSquareOfA], sums[kProduct], sums[kSquareOfB]);
}

__device__ __forceinline__ void LeaveSums(const Piece& piece, const double (&sums)[kPairSums],
                                          PairResults results) {
  if (piece.slot == kWholeSegment) {
    const PairCoefficients coefficients = CoefficientsOf(sums);
    double* of_segment = results.coefficients_S2 + static_cast<int64>(piece.segment) * 2;
    of_segment[0] = coefficients.of_a;
    of_segment[1] = coefficients.of_b;
  } else {
#pragma unroll
    for (int k = 0; k < kPairSums; ++k) {
      results.slot_sums[static_cast<int64>(piece.slot) * kPairSums + k] = sums[k];
    }
  }
}

__device__ __forceinline__ PairCoefficients CoefficientsOfWhole(const Piece& piece,
                                                                PairResults results) {
  const double* of_segment = results.coefficients_S2 + static_cast<int64>(piece.segment) * 2;
  return {LoadThroughL2(of_segment), LoadThroughL2(of_segment + 1)};
}

// Called by the whole block. Every block that owns a piece of the segment adds its slots anew, in
// the same order.
template <int kThreads>
__device__ __forceinline__ PairCoefficients CoefficientsOfSplit(const Piece& piece,
                                                                PairResults results) {
  double sums[kPairSums] = {};
  for (int slot = threadIdx.x; slot < piece.slot_count; slot += kThreads) {
    const int64 at = static_cast<int64>(piece.first_slot + slot) * kPairSums;
#pragma unroll
    for (int k = 0; k < kPairSums; ++k) sums[k] += LoadThroughL2(results.slot_sums + at + k);
  }
  SumOverBlock<kThreads>(sums);
  return CoefficientsOf(sums);
}

// Pass 1 on one partition.
template <int kThreads, typename Pair>
__device__ __forceinline__ void ReducePartition(const Pair& pair, const PartitionMap& map,
                                                int partition, PairResults results) {
  const int first_small = map.first_small_piece[partition];
  for (int p = map.first_piece[partition]; p < first_small; ++p) {
    const Piece piece = map.pieces[p];
    double sums[kPairSums] = {};
    pair.AddSums(piece.begin, piece.end, BlockTeam<kThreads>(), sums);
    SumOverBlock<kThreads>(sums);
    if (threadIdx.x == 0) LeaveSums(piece, sums, results);
  }
  const int last = map.first_piece[partition + 1];
  for (int p = first_small + Warp(); p < last; p += kThreads / kWarpThreads) {
    const Piece piece = map.pieces[p];
    double sums[kPairSums] = {};
    pair.AddSums(piece.begin, piece.end, WarpTeam(), sums);
    SumOverWarp(sums);
    if (Lane() == 0) LeaveSums(piece, sums, results);
  }
}

// Pass 2 on one partition: the small pieces, which came last, then the others from the last one on.
template <int kThreads, typename Pair, typename T>
__device__ __forceinline__ void CombinePartition(const Pair& pair, T* combined_N,
                                                 const PartitionMap& map, int partition,
                                                 PairResults results) {
  const int first_small = map.first_small_piece[partition];
  const int last = map.first_piece[partition + 1];
  for (int p = last - 1 - Warp(); p >= first_small; p -= kThreads / kWarpThreads) {
    const Piece piece = map.pieces[p];
    pair.Write(combined_N, piece.begin, piece.end, WarpTeam(), CoefficientsOfWhole(piece, results));
  }
  for (int p = first_small - 1; p >= map.first_piece[partition]; --p) {
    const Piece piece = map.pieces[p];
    const PairCoefficients coefficients = piece.slot == kWholeSegment
                                              ? CoefficientsOfWhole(piece, results)
                                              : CoefficientsOfSplit<kThreads>(piece, results);
    pair.Write(combined_N, piece.begin, piece.end, BlockTeam<kThreads>(), coefficients);
  }
}

template <typename T, int kWidth>
__device__ __forceinline__ void PairwiseReduce(const T* a_N, const T* b_N, const PartitionMap& map,
                                               PairResults results) {
  const PairInGlobalMemory<T, kWidth> pair = {a_N, b_N};
  ReducePartition<kBlockThreads>(pair, map, blockIdx.x, results);
}

template <typename T, int kWidth>
__device__ __forceinline__ void PairwiseCombine(const T* a_N, const T* b_N, T* combined_N,
                                                const PartitionMap& map, PairResults results) {
  const PairInGlobalMemory<T, kWidth> pair = {a_N, b_N};
  const int partition = map.partition_count - 1 - static_cast<int>(blockIdx.x);
  CombinePartition<kBlockThreads>(pair, combined_N, map, partition, results);
}

}  // namespace tf_adasum
