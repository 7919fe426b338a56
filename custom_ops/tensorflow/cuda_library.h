// The CUDA library, opened at the first use of a GPU kernel.
//
// This library itself holds no CUDA symbol, so one build of it loads into TensorFlow with and
// without GPUs. The CUDA library lies beside it; see ../cuda/adasum_cuda.h.
#pragma once

#include "../cuda/adasum_cuda.h"
#include "absl/status/status.h"

namespace tf_adasum {

// The functions of adasum_cuda.h, under its names without the prefix.
struct CudaLibrary {
  decltype(&adasum_plan_create) plan_create;
  decltype(&adasum_plan_destroy) plan_destroy;
  decltype(&adasum_plan_map_size) plan_map_size;
  decltype(&adasum_plan_copy_map) plan_copy_map;
  decltype(&adasum_plan_workspace_size) plan_workspace_size;
  decltype(&adasum_pairwise_combine) pairwise_combine;
  decltype(&adasum_segment_gram) segment_gram;
  decltype(&adasum_segment_weighted_sum) segment_weighted_sum;
  decltype(&adasum_error_string) error_string;

  // OK for 0, else an error that says what failed.
  absl::Status StatusOf(int error) const;
};

// Sets `library` to the one library of this process, or fails with the reason why there is none.
absl::Status GetCudaLibrary(const CudaLibrary** library);

}  // namespace tf_adasum
