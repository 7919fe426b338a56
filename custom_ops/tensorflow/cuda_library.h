// Opens the CUDA library when a GPU kernel is first used.
//
// The compiled op itself uses no CUDA symbol, so one build of it loads into TensorFlow with and
// without GPUs. The CUDA library is in the same folder; see ../cuda/adasum_cuda.h.
#pragma once

#include "../cuda/adasum_cuda.h"
#include "absl/status/status.h"

namespace tf_adasum {

// The functions of adasum_cuda.h, with their names without the prefix.
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

  // Returns OK for 0, otherwise an error with the text of adasum_error_string.
  absl::Status StatusOf(int error) const;
};

// Sets `library` to the only CudaLibrary of this process. Fails if the library cannot be loaded.
absl::Status GetCudaLibrary(const CudaLibrary** library);

}  // namespace tf_adasum
