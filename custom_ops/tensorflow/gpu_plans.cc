#include "gpu_plans.h"

#include "xla/stream_executor/stream.h"

namespace tf_adasum {
namespace {

// Many more than a model needs. If a program uses more shapes, the cache is emptied whenever it is
// full.
constexpr size_t kMaxPlans = 64;

}  // namespace

void* StreamOf(tensorflow::OpKernelContext* context) {
  tensorflow::DeviceContext* device = context->op_device_context();
  // On a CPU, on which tests run these kernels, there is no device context.
  return device == nullptr ? nullptr : device->stream()->platform_specific_handle().stream;
}

absl::Status GpuPlans::Get(tensorflow::OpKernelContext* context, const CudaLibrary& library,
                           int64_t row_count, const tensorflow::Tensor& segments,
                           std::shared_ptr<const GpuPlan>* plan) {
  const int64_t* offsets = segments.vec<int64_t>().data();
  Shape shape(row_count, std::vector<int64_t>(offsets, offsets + segments.NumElements()));
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto known = plans_.find(shape); known != plans_.end()) {
    *plan = known->second;
    return absl::OkStatus();
  }

  AdasumPlan* made = nullptr;
  TF_RETURN_IF_ERROR(library.StatusOf(library.plan_create(
      operation_, type_, row_count, offsets, segments.NumElements() - 1, nullptr, &made)));
  tensorflow::Tensor map;
  absl::Status status = context->allocate_temp(
      tensorflow::DT_INT8, tensorflow::TensorShape({library.plan_map_size(made)}), &map);
  if (status.ok()) {
    status = library.StatusOf(library.plan_copy_map(made, map.data(), StreamOf(context)));
  }
  if (!status.ok()) {
    library.plan_destroy(made);
    return status;
  }
  if (plans_.size() >= kMaxPlans) plans_.clear();
  *plan = std::make_shared<const GpuPlan>(library, made, std::move(map));
  plans_.emplace(std::move(shape), *plan);
  return absl::OkStatus();
}

}  // namespace tf_adasum
