// Threads that work together, a block or a warp, and sums over them in a fixed order.
#pragma once

#include "thresholds.h"

namespace tf_adasum {

// The threads that share a range of elements.
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

// Every thread receives the sums over all threads: those of the warps are added in their order.
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
  __syncthreads();  // before the next call writes
}

}  // namespace tf_adasum
