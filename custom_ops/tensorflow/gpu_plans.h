// A cache of the plans of one GPU kernel. A plan is created once for each shape, and its map stays
// on the device.
//
// Training steps use the same few shapes again and again. After the first use of a shape, its plan
// needs no work on the host and no copy to the device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_library.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_adasum {

// A plan and its map. A call that uses a plan keeps it alive after it was removed from the cache.
class GpuPlan {
 public:
  GpuPlan(const CudaLibrary& library, AdasumPlan* plan, tensorflow::Tensor map)
      : library_(library), plan_(plan), map_(std::move(map)) {}
  ~GpuPlan() { library_.plan_destroy(plan_); }
  GpuPlan(const GpuPlan&) = delete;
  GpuPlan& operator=(const GpuPlan&) = delete;

  const AdasumPlan* plan() const { return plan_; }
  const void* map() const { return map_.data(); }

 private:
  const CudaLibrary& library_;
  AdasumPlan* const plan_;
  const tensorflow::Tensor map_;  // on the device
};

class GpuPlans {
 public:
  GpuPlans(AdasumOperation operation, AdasumType type) : operation_(operation), type_(type) {}

  // Sets `plan` to the plan for `row_count` rows with these `segments` (in host memory). Creates it
  // if it is not in the cache.
  absl::Status Get(tensorflow::OpKernelContext* context, const CudaLibrary& library,
                   int64_t row_count, const tensorflow::Tensor& segments,
                   std::shared_ptr<const GpuPlan>* plan);

 private:
  using Shape = std::pair<int64_t, std::vector<int64_t>>;

  const AdasumOperation operation_;
  const AdasumType type_;
  std::mutex mutex_;
  std::map<Shape, std::shared_ptr<const GpuPlan>> plans_;
};

// Returns the stream of the kernel's device, a cudaStream_t.
void* StreamOf(tensorflow::OpKernelContext* context);

}  // namespace tf_adasum
