// The three ops on a CPU. The kernels check the arguments, allocate the outputs, and call the
// functions of ../cpu on TensorFlow's threads.
#include <cstdint>
#include <functional>
#include <vector>

#include "../cpu/chunks.h"
#include "../cpu/gram.h"
#include "../cpu/pairwise_combine.h"
#include "../cpu/weighted_sum.h"
#include "elements.h"
#include "huge_pages.h"
#include "op_arguments.h"
#include "registration.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tf_adasum {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename T>
typename ElementOf<T>::type* MutableElements(Tensor* tensor) {
  PreferHugePages(tensor->data(), tensor->TotalBytes());
  return reinterpret_cast<typename ElementOf<T>::type*>(tensor->flat<T>().data());
}

// Returns the addresses of the rows of an [R, N] tensor.
template <typename T>
std::vector<const typename ElementOf<T>::type*> Rows(const Tensor& rows_RN) {
  std::vector<const typename ElementOf<T>::type*> rows_R(rows_RN.dim_size(0));
  for (size_t i = 0; i < rows_R.size(); ++i) {
    rows_R[i] = Elements<T>(rows_RN) + i * rows_RN.dim_size(1);
  }
  return rows_R;
}

ParallelFor OnWorkerThreadsOf(OpKernelContext* context) {
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  return [workers](int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& work) {
    tensorflow::Shard(workers->num_threads, workers->workers, total, cost,
                      [&work](int64_t first, int64_t last) {
                        const KeepSubnormals keep_subnormals;
                        work(first, last);
                      });
  };
}

template <typename T>
class PairwiseCombineOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& a = context->input(0);
    const Tensor& b = context->input(1);
    const Tensor& segments = context->input(2);
    OP_REQUIRES_OK(context, CheckPair(a, b));
    OP_REQUIRES_OK(context, CheckSegments(segments, a.NumElements()));

    Tensor* combined = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0, 1}, 0, a.shape(), &combined));

    const KeepSubnormals keep_subnormals;
    PairwiseCombine(Elements<T>(a), Elements<T>(b),
                    CutIntoChunks(segments.vec<int64_t>().data(), segments.dim_size(0) - 1),
                    OnWorkerThreadsOf(context), MutableElements<T>(combined));
  }
};

template <typename T>
class SegmentGramOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& rows_RN = context->input(0);
    const Tensor& segments = context->input(1);
    OP_REQUIRES_OK(context, CheckRows(rows_RN));
    OP_REQUIRES_OK(context, CheckSegments(segments, rows_RN.dim_size(1)));
    const int64_t row_count = rows_RN.dim_size(0);
    const int64_t segment_count = segments.dim_size(0) - 1;

    Tensor* gram_SRR = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({segment_count, row_count, row_count}), &gram_SRR));
    const KeepSubnormals keep_subnormals;
    SegmentGram(Rows<T>(rows_RN), CutIntoChunks(segments.vec<int64_t>().data(), segment_count),
                segment_count, OnWorkerThreadsOf(context), MutableElements<double>(gram_SRR));
  }
};

template <typename T>
class SegmentWeightedSumOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& rows_RN = context->input(0);
    const Tensor& coefficients_SR = context->input(1);
    const Tensor& segments = context->input(2);
    OP_REQUIRES_OK(context, CheckRows(rows_RN));
    OP_REQUIRES_OK(context, CheckSegments(segments, rows_RN.dim_size(1)));
    const int64_t segment_count = segments.dim_size(0) - 1;
    OP_REQUIRES_OK(context, CheckCoefficients(coefficients_SR, segments, rows_RN));

    Tensor* combined_N = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({rows_RN.dim_size(1)}), &combined_N));
    const KeepSubnormals keep_subnormals;
    SegmentWeightedSum(Rows<T>(rows_RN), Elements<double>(coefficients_SR),
                       CutIntoChunks(segments.vec<int64_t>().data(), segment_count),
                       OnWorkerThreadsOf(context), MutableElements<T>(combined_N));
  }
};

#define TF_ADASUM_ON_CPU(OP) Name(OP).Device(tensorflow::DEVICE_CPU)
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_CPU(TF_ADASUM_PAIRWISE_COMBINE), PairwiseCombineOp);
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_CPU(TF_ADASUM_SEGMENT_GRAM), SegmentGramOp);
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_CPU(TF_ADASUM_SEGMENT_WEIGHTED_SUM), SegmentWeightedSumOp);

}  // namespace
}  // namespace tf_adasum
