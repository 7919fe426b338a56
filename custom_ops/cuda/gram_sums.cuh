// Computes many inner products at once: each thread keeps running sums, and the warp adds them.
//
//     sums.running[k] += x·y     at most kMaxFloatProducts times before the next Flush()
//     sums.Flush()               called by all lanes of the warp together
//     sums.Store(out)            at the end, by all lanes: out[k] is the total of the warp
#pragma once

#include "teams.cuh"

namespace tf_adasum {

// Returns how many of `count` totals one of the 32 lanes owns: `count` is halved five times, and
// rounded up each time.
__host__ __device__ constexpr int TotalsPerLane(int count) {
  for (int lanes = kWarpThreads; lanes > 1; lanes /= 2) count = (count + 1) / 2;
  return count;
}

template <typename Compute, int kCount>
class GramSums;

// Running sums are floats, and are often added to totals, which are doubles. 136 doubles per thread
// would not fit into the registers, so the lanes share them: each lane keeps 1/32 of the totals.
template <int kCount>
class GramSums<float, kCount> {
 public:
  float running[kCount] = {};

  // Adds the running sums over the warp in five steps. In each step, a lane keeps half of its sums.
  // It sends the other half to the lane at a distance of 16, 8, 4, 2 or 1, and adds the half that
  // it receives to the half that it keeps.
  //
  // Example: 3 sums. At distance 16, lanes 0..15 keep the sums 0 and 1; lanes 16..31 keep the sum 2
  // and a zero. At distance 8, lanes 0..7 keep the sum 0; lanes 8..15 keep the sum 1.
  __device__ __forceinline__ void Flush() {
    int width = kCount;
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      const int half = (width + 1) / 2;
      const bool keeps_upper = Lane() & distance;
#pragma unroll
      for (int k = 0; k < (kCount + 1) / 2; ++k) {
        if (k < half) {
          const float lower = running[k];
          const float upper = k + half < width ? running[k + half] : 0.0f;
          const float given = keeps_upper ? lower : upper;
          running[k] = (keeps_upper ? upper : lower) + __shfl_xor_sync(kAllLanes, given, distance);
        }
      }
      width = half;
    }
#pragma unroll
    for (int k = 0; k < kShare; ++k) totals_[k] += static_cast<double>(running[k]);
#pragma unroll
    for (int k = 0; k < kCount; ++k) running[k] = 0.0f;
  }

  __device__ __forceinline__ void Store(double* out) {
    Flush();
    int first = 0;       // first sum that this lane keeps
    int count = kCount;  // number of its sums that are not padding
    int width = kCount;
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      const int half = (width + 1) / 2;
      if (Lane() & distance) {
        first += half;
        count -= half;
      } else {
        count = count < half ? count : half;
      }
      width = half;
    }
#pragma unroll
    for (int k = 0; k < kShare; ++k) {
      if (k < count) out[first + k] = totals_[k];
    }
  }

 private:
  static constexpr int kShare = TotalsPerLane(kCount);
  double totals_[kShare] = {};
};

// Double sums are not flushed: the warp adds them once, at the end.
template <int kCount>
class GramSums<double, kCount> {
 public:
  double running[kCount] = {};

  __device__ __forceinline__ void Flush() {}

  __device__ __forceinline__ void Store(double* out) {
    SumOverWarp(running);
    if (Lane() == 0) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) out[k] = running[k];
    }
  }
};

}  // namespace tf_adasum
