// Pairwise combination in two kernels: the first kernel reduces, the second kernel writes.
//
//     pass 1   reads a and b, computes a·a, a·b and b·b of each segment
//     pass 2   reads a and b backwards, writes combined
//
// Memory traffic: 5·N·sizeof(T) bytes, minus the data that pass 2 finds in L2. Pass 2 processes
// everything in the opposite order of pass 1, because the data that was read last is still in L2.
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

// Gives both passes access to the operands in global memory. PairInSharedMemory (pairwise_single_pass.cuh)
// has the same functions for operands in shared memory.
template <typename T, int kWidth>
struct PairInGlobalMemory {
  const T* a_N;
  const T* b_N;

  __device__ __forceinline__ void AddSums(int64 begin, int64 end, Team team,
                                          double (&sums)[kPairSums]) const {
    AddPairSums<Memory::kGlobalReused, kWidth>(a_N, b_N, begin, end, team, sums);
  }
  __device__ __forceinline__ void Write(T* combined_N, int64 begin, int64 end, Team team,
                                        PairCoefficients coefficients) const {
    WriteCombined<Memory::kGlobalStreaming, kWidth>(a_N, b_N, combined_N, begin, end, team,
                                                    static_cast<ComputeType<T>>(coefficients.of_a),
                                                    static_cast<ComputeType<T>>(coefficients.of_b));
  }
};

__device__ __forceinline__ PairCoefficients CoefficientsOf(const double (&sums)[kPairSums]) {
  return CoefficientsOfPair(sums[kSquareOfA], sums[kProduct], sums[kSquareOfB]);
}

__device__ __forceinline__ void StoreSums(const Piece& piece, const double (&sums)[kPairSums],
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

__device__ __forceinline__ PairCoefficients LoadCoefficients(const Piece& piece,
                                                             PairResults results) {
  const double* of_segment = results.coefficients_S2 + static_cast<int64>(piece.segment) * 2;
  return {LoadThroughL2(of_segment), LoadThroughL2(of_segment + 1)};
}

// Computes the coefficients of a split segment from its slots. All threads of the block must call
// it. Every block that has a piece of the segment repeats this computation, with the same order of
// additions.
template <int kThreads>
__device__ __forceinline__ PairCoefficients ReduceSlotCoefficients(const Piece& piece,
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
    if (threadIdx.x == 0) StoreSums(piece, sums, results);
  }
  const int last = map.first_piece[partition + 1];
  for (int p = first_small + Warp(); p < last; p += kThreads / kWarpThreads) {
    const Piece piece = map.pieces[p];
    double sums[kPairSums] = {};
    pair.AddSums(piece.begin, piece.end, WarpTeam(), sums);
    SumOverWarp(sums);
    if (Lane() == 0) StoreSums(piece, sums, results);
  }
}

// Pass 2 on one partition, in the opposite order of pass 1: first the small pieces, then the other
// pieces, both from the last piece to the first.
template <int kThreads, typename Pair, typename T>
__device__ __forceinline__ void CombinePartition(const Pair& pair, T* combined_N,
                                                 const PartitionMap& map, int partition,
                                                 PairResults results) {
  const int first_small = map.first_small_piece[partition];
  const int last = map.first_piece[partition + 1];
  for (int p = last - 1 - Warp(); p >= first_small; p -= kThreads / kWarpThreads) {
    const Piece piece = map.pieces[p];
    pair.Write(combined_N, piece.begin, piece.end, WarpTeam(), LoadCoefficients(piece, results));
  }
  for (int p = first_small - 1; p >= map.first_piece[partition]; --p) {
    const Piece piece = map.pieces[p];
    const PairCoefficients coefficients = piece.slot == kWholeSegment
                                              ? LoadCoefficients(piece, results)
                                              : ReduceSlotCoefficients<kThreads>(piece, results);
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
