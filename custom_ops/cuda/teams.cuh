// Threads that work together (a block or a warp), and sums over these threads in a fixed order.
#pragma once

#include "thresholds.h"

namespace tf_adasum {

// A thread's index among the threads that share a range of elements, and their number.
struct Team {
  int thread;
  int size;
};

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarpThreads; }

template <int kThreads>
__device__ __forceinline__ Team BlockTeam() {
  return {static_cast<int>(threadIdx.x), kThreads};
}
__device__ __forceinline__ Team WarpTeam() { return {Lane(), kWarpThreads}; }

// Every lane receives the sums over all lanes.
template <int kCount>
__device__ __forceinline__ void SumOverWarp(double (&sums)[kCount]) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      sums[k] += __shfl_xor_sync(kAllLanes, sums[k], distance);
    }
  }
}

// Every thread receives the sums over all threads of the block. The sums of the warps are added in
// the order of the warps.
template <int kThreads, int kCount>
__device__ __forceinline__ void SumOverBlock(double (&sums)[kCount]) {
  constexpr int kWarps = kThreads / kWarpThreads;
  TF_ADASUM_SHARED_ARRAY(double, warp_sums, (kWarps * kCount));
  SumOverWarp(sums);
  if (Lane() == 0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) warp_sums[Warp() * kCount + k] = sums[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    sums[k] = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sums[k] += warp_sums[warp * kCount + k];
  }
  __syncthreads();  // the next call overwrites warp_sums
}

}  // namespace tf_adasum
