// The two steps of the pairwise combination on a range of elements: the sums, then the weighted
// sum.
#pragma once

#include "packets.cuh"
#include "teams.cuh"

namespace tf_adasum {

// Indices into the sums of a pair.
enum { kSquareOfA = 0, kProduct = 1, kSquareOfB = 2, kPairSums = 3 };

// Number of packets of each operand that a thread has in flight.
constexpr int kPacketsToReduce = 4;
constexpr int kPacketsToCombine = 2;

template <typename Compute>
__device__ __forceinline__ void AddProducts(Compute a, Compute b, Compute (&sums)[kPairSums]) {
  sums[kSquareOfA] += a * a;
  sums[kProduct] += a * b;
  sums[kSquareOfB] += b * b;
}

// Adds the thread's share of a·a, a·b and b·b over [begin, end) to `sums`.
template <Memory kMemory, int kWidth, typename T>
__device__ __forceinline__ void AddPairSums(const T* a, const T* b, int64 begin, int64 end,
                                            Team team, double (&sums)[kPairSums]) {
  using Compute = ComputeType<T>;
  static_assert(kPacketsToReduce * kWidth <= kMaxFloatProducts, "inner sums are too long");
  const PacketRange<kWidth> range(begin, end);
  for (int first = team.thread; first < range.packet_count; first += team.size * kPacketsToReduce) {
    Packet<T, kWidth> x[kPacketsToReduce];
    Packet<T, kWidth> y[kPacketsToReduce];
#pragma unroll
    for (int u = 0; u < kPacketsToReduce; ++u) {
      const int k = first + u * team.size;
      const bool exists = k < range.packet_count;
      x[u] = exists ? LoadPacket<kMemory, kWidth>(a + range.Packet(k)) : ZeroPacket<T, kWidth>();
      y[u] = exists ? LoadPacket<kMemory, kWidth>(b + range.Packet(k)) : ZeroPacket<T, kWidth>();
    }
    Compute inner[kPairSums] = {};
#pragma unroll
    for (int u = 0; u < kPacketsToReduce; ++u) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        AddProducts<Compute>(Widen(x[u].elements[j]), Widen(y[u].elements[j]), inner);
      }
    }
#pragma unroll
    for (int k = 0; k < kPairSums; ++k) sums[k] += inner[k];
  }
  if (team.thread < range.end_count) {
    const int64 k = range.EndElement(team.thread);
    Compute inner[kPairSums] = {};
    AddProducts<Compute>(Widen(a[k]), Widen(b[k]), inner);
#pragma unroll
    for (int j = 0; j < kPairSums; ++j) sums[j] += inner[j];
  }
}

// The result has the same bits if (of_a, a) and (of_b, b) are exchanged.
template <typename Compute>
__device__ __forceinline__ Compute WeightedSumOfPair(Compute of_a, Compute a, Compute of_b,
                                                     Compute b) {
  return RoundedProduct(of_a, a) + RoundedProduct(of_b, b);
}

// Writes combined = of_a a + of_b b over [begin, end). It starts with the last packets: the
// reduction read them last, so they are still in the cache.
template <Memory kMemory, int kWidth, typename T>
__device__ __forceinline__ void WriteCombined(const T* a, const T* b, T* combined, int64 begin,
                                              int64 end, Team team, ComputeType<T> of_a,
                                              ComputeType<T> of_b) {
  const PacketRange<kWidth> range(begin, end);
  for (int last = range.packet_count - 1 - team.thread; last >= 0;
       last -= team.size * kPacketsToCombine) {
    Packet<T, kWidth> x[kPacketsToCombine];
    Packet<T, kWidth> y[kPacketsToCombine];
#pragma unroll
    for (int u = 0; u < kPacketsToCombine; ++u) {
      const int k = last - u * team.size;
      if (k >= 0) {
        x[u] = LoadPacket<kMemory, kWidth>(a + range.Packet(k));
        y[u] = LoadPacket<kMemory, kWidth>(b + range.Packet(k));
      }
    }
#pragma unroll
    for (int u = 0; u < kPacketsToCombine; ++u) {
      const int k = last - u * team.size;
      if (k >= 0) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {  // overwrites x, to save registers
          Round(WeightedSumOfPair(of_a, Widen(x[u].elements[j]), of_b, Widen(y[u].elements[j])),
                &x[u].elements[j]);
        }
        StorePacket(combined + range.Packet(k), x[u]);
      }
    }
  }
  if (team.thread < range.end_count) {
    const int64 k = range.EndElement(team.thread);
    Round(WeightedSumOfPair(of_a, Widen(a[k]), of_b, Widen(b[k])), &combined[k]);
  }
}

}  // namespace tf_adasum
