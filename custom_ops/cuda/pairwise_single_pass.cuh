// Pairwise combination in one cooperative kernel that keeps the operands in shared memory.
//
//     copy the partition to shared memory -> sums -> grid barrier -> combine from shared memory
//
// Memory traffic: 3·N·sizeof(T) bytes if every partition fits into the shared memory of its block.
// If a partition does not fit, its beginning is read from global memory in both passes. The second
// pass reads it backwards and finds most of it in L2.
//
//     partition   |  read twice  |   resident in shared memory   |
//                 first      resident_begin                    last
//
// Example: 132 multiprocessors with 227 KiB each hold 3.8 million floats of each operand.
#pragma once

#include "pairwise_two_passes.cuh"

namespace tf_adasum {

template <typename T>
struct PairInSharedMemory {
  static constexpr int kWidth = kVectorWidth<T>;

  const T* a_N;
  const T* b_N;
  const T* resident_a;  // element k is resident_a[k - resident_begin]
  const T* resident_b;
  int64 resident_begin;  // a multiple of kWidth, so that packets in shared memory are aligned

  __device__ __forceinline__ void AddSums(int64 begin, int64 end, Team team,
                                          double (&sums)[kPairSums]) const {
    if (begin < resident_begin) {
      const int64 until = end < resident_begin ? end : resident_begin;
      AddPairSums<Memory::kGlobalReused, kWidth>(a_N, b_N, begin, until, team, sums);
    }
    if (end > resident_begin) {
      const int64 from = begin > resident_begin ? begin : resident_begin;
      AddPairSums<Memory::kShared, kWidth>(resident_a, resident_b, from - resident_begin,
                                           end - resident_begin, team, sums);
    }
  }

  __device__ __forceinline__ void Write(T* combined_N, int64 begin, int64 end, Team team,
                                        PairCoefficients coefficients) const {
    const ComputeType<T> of_a = static_cast<ComputeType<T>>(coefficients.of_a);
    const ComputeType<T> of_b = static_cast<ComputeType<T>>(coefficients.of_b);
    if (end > resident_begin) {
      const int64 from = begin > resident_begin ? begin : resident_begin;
      WriteCombined<Memory::kShared, kWidth>(resident_a, resident_b, combined_N + resident_begin,
                                             from - resident_begin, end - resident_begin, team,
                                             of_a, of_b);
    }
    if (begin < resident_begin) {
      const int64 until = end < resident_begin ? end : resident_begin;
      WriteCombined<Memory::kGlobalStreaming, kWidth>(a_N, b_N, combined_N, begin, until, team,
                                                      of_a, of_b);
    }
  }
};

// Copies the end of [first, last) to shared memory, at most `capacity` packets of each operand:
// first the packets of a, then the packets of b. The first packet may begin before `first`, and the
// last packet may end after `last`. Elements after the end of the buffer are zero.
template <typename T>
__device__ __forceinline__ PairInSharedMemory<T> LoadToSharedMemory(const T* a_N, const T* b_N,
                                                                    int64 element_count,
                                                                    int64 first, int64 last,
                                                                    int capacity, uint4* shared) {
  constexpr int kWidth = kVectorWidth<T>;
  const int64 last_packet = (last + kWidth - 1) / kWidth;
  const int64 least_packet = last_packet - capacity;
  const int64 first_packet = first / kWidth > least_packet ? first / kWidth : least_packet;
  const int64 resident_begin = first_packet * kWidth;
  const int packet_count = static_cast<int>(last_packet - first_packet);
  for (int k = threadIdx.x; k < packet_count; k += kSinglePassThreads) {
    const int64 element = resident_begin + static_cast<int64>(k) * kWidth;
    const int64 left = element_count - element;
    const int bytes =
        (left < kWidth ? static_cast<int>(left) : kWidth) * static_cast<int>(sizeof(T));
    StartCopyToShared(shared + k, reinterpret_cast<const uint4*>(a_N + element), bytes);
    StartCopyToShared(shared + capacity + k, reinterpret_cast<const uint4*>(b_N + element), bytes);
  }
  FinishCopiesToShared();
  __syncthreads();
  return {a_N, b_N, reinterpret_cast<const T*>(shared),
          reinterpret_cast<const T*>(shared + capacity), resident_begin};
}

template <typename T>
__device__ __forceinline__ void PairwiseSinglePass(const T* a_N, const T* b_N, T* combined_N,
                                                   int64 element_count, int capacity,
                                                   const PartitionMap& map, PairResults results,
                                                   unsigned* arrived) {
  TF_ADASUM_DYNAMIC_SHARED_ARRAY(uint4, shared);
  const int partition = blockIdx.x;
  const PairInSharedMemory<T> pair =
      LoadToSharedMemory(a_N, b_N, element_count, map.first_element[partition],
                         map.first_element[partition + 1], capacity, shared);
  ReducePartition<kSinglePassThreads>(pair, map, partition, results);
  WaitForAllBlocks(arrived);
  CombinePartition<kSinglePassThreads>(pair, combined_N, map, partition, results);
}

}  // namespace tf_adasum
