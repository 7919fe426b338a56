// The three ops on a GPU. The kernels check the arguments, allocate the outputs and the workspace,
// and call the CUDA library.
//
// `segments` is in host memory, all other tensors are on the device. The kernels do not wait for
// the device.
#include <cstdint>
#include <memory>

#include "gpu_plans.h"
#include "op_arguments.h"
#include "registration.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tf_adasum {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename T>
constexpr AdasumType kTypeOf = ADASUM_FLOAT32;
template <>
constexpr AdasumType kTypeOf<double> = ADASUM_FLOAT64;
template <>
constexpr AdasumType kTypeOf<Eigen::half> = ADASUM_FLOAT16;
template <>
constexpr AdasumType kTypeOf<Eigen::bfloat16> = ADASUM_BFLOAT16;

// The objects that a call of the CUDA library needs, apart from inputs and outputs. The workspace
// may be returned to TensorFlow's allocator before the device has used it. This is safe, because
// the allocator reuses memory in stream order.
struct Call {
  const CudaLibrary* library;
  std::shared_ptr<const GpuPlan> plan;
  Tensor workspace;
  void* stream;
};

absl::Status Prepare(OpKernelContext* context, GpuPlans* plans, int64_t row_count,
                     const Tensor& segments, Call* call) {
  TF_RETURN_IF_ERROR(GetCudaLibrary(&call->library));
  TF_RETURN_IF_ERROR(plans->Get(context, *call->library, row_count, segments, &call->plan));
  const int64_t bytes = call->library->plan_workspace_size(call->plan->plan());
  call->stream = StreamOf(context);
  return context->allocate_temp(tensorflow::DT_INT8, TensorShape({bytes}), &call->workspace);
}

template <typename T>
class PairwiseCombineGpuOp : public tensorflow::OpKernel {
 public:
  explicit PairwiseCombineGpuOp(OpKernelConstruction* construction)
      : OpKernel(construction), plans_(ADASUM_PAIRWISE_COMBINE, kTypeOf<T>) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1), &segments = context->input(2);
    OP_REQUIRES_OK(context, CheckPair(a, b));
    OP_REQUIRES_OK(context, CheckSegments(segments, a.NumElements()));
    Tensor* combined = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0, 1}, 0, a.shape(), &combined));
    if (a.NumElements() == 0) return;
    Call call;
    OP_REQUIRES_OK(context, Prepare(context, &plans_, 2, segments, &call));
    OP_REQUIRES_OK(context, call.library->StatusOf(call.library->pairwise_combine(
                                call.plan->plan(), call.plan->map(), call.workspace.data(),
                                a.data(), b.data(), combined->data(), call.stream)));
  }

 private:
  GpuPlans plans_;
};

template <typename T>
class SegmentGramGpuOp : public tensorflow::OpKernel {
 public:
  explicit SegmentGramGpuOp(OpKernelConstruction* construction)
      : OpKernel(construction), plans_(ADASUM_SEGMENT_GRAM, kTypeOf<T>) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &rows_RN = context->input(0), &segments = context->input(1);
    OP_REQUIRES_OK(context, CheckRows(rows_RN));
    OP_REQUIRES_OK(context, CheckSegments(segments, rows_RN.dim_size(1)));
    const int64_t row_count = rows_RN.dim_size(0);
    Tensor* gram_SRR = nullptr;
    OP_REQUIRES_OK(
        context, context->allocate_output(
                     0, TensorShape({segments.dim_size(0) - 1, row_count, row_count}), &gram_SRR));
    if (gram_SRR->NumElements() == 0) return;
    Call call;
    OP_REQUIRES_OK(context, Prepare(context, &plans_, row_count, segments, &call));
    OP_REQUIRES_OK(context,
                   call.library->StatusOf(call.library->segment_gram(
                       call.plan->plan(), call.plan->map(), call.workspace.data(), rows_RN.data(),
                       rows_RN.dim_size(1), gram_SRR->flat<double>().data(), call.stream)));
  }

 private:
  GpuPlans plans_;
};

template <typename T>
class SegmentWeightedSumGpuOp : public tensorflow::OpKernel {
 public:
  explicit SegmentWeightedSumGpuOp(OpKernelConstruction* construction)
      : OpKernel(construction), plans_(ADASUM_SEGMENT_WEIGHTED_SUM, kTypeOf<T>) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &rows_RN = context->input(0), &coefficients_SR = context->input(1),
                 &segments = context->input(2);
    OP_REQUIRES_OK(context, CheckRows(rows_RN));
    OP_REQUIRES_OK(context, CheckSegments(segments, rows_RN.dim_size(1)));
    OP_REQUIRES_OK(context, CheckCoefficients(coefficients_SR, segments, rows_RN));
    Tensor* combined_N = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({rows_RN.dim_size(1)}), &combined_N));
    if (combined_N->NumElements() == 0) return;
    Call call;
    OP_REQUIRES_OK(context, Prepare(context, &plans_, rows_RN.dim_size(0), segments, &call));
    OP_REQUIRES_OK(context,
                   call.library->StatusOf(call.library->segment_weighted_sum(
                       call.plan->plan(), call.plan->map(), rows_RN.data(), rows_RN.dim_size(1),
                       coefficients_SR.flat<double>().data(), combined_N->data(), call.stream)));
  }

 private:
  GpuPlans plans_;
};

// A test runs these kernels on the CPU, with an emulation of the CUDA library.
#ifndef TF_ADASUM_GPU_KERNELS_ON
#define TF_ADASUM_GPU_KERNELS_ON tensorflow::DEVICE_GPU
#endif

#define TF_ADASUM_ON_GPU(OP) Name(OP).Device(TF_ADASUM_GPU_KERNELS_ON).HostMemory("segments")
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_GPU(TF_ADASUM_PAIRWISE_COMBINE), PairwiseCombineGpuOp);
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_GPU(TF_ADASUM_SEGMENT_GRAM), SegmentGramGpuOp);
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_GPU(TF_ADASUM_SEGMENT_WEIGHTED_SUM),
                           SegmentWeightedSumGpuOp);

}  // namespace
}  // namespace tf_adasum
