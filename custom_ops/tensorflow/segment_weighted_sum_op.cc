// TfAdasumSegmentWeightedSum on the CPU: checks the arguments and calls SegmentWeightedSum.
#include "op_arguments.h"
#include "../cpu/weighted_sum.h"

namespace tf_adasum {

template <typename T>
class SegmentWeightedSumOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& rows_RN = context->input(0);
    const tensorflow::Tensor& coefficients_SR = context->input(1);
    const tensorflow::Tensor& segments = context->input(2);
    OP_REQUIRES_OK(context, CheckRows(rows_RN));
    OP_REQUIRES_OK(context, CheckSegments(segments, rows_RN.dim_size(1)));
    const int64_t segment_count = segments.dim_size(0) - 1;
    OP_REQUIRES_OK(context, CheckCoefficients(coefficients_SR, segments, rows_RN));

    tensorflow::Tensor* combined_N = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, tensorflow::TensorShape({rows_RN.dim_size(1)}), &combined_N));
    const KeepSubnormals keep_subnormals;
    SegmentWeightedSum(Rows<T>(rows_RN), Elements<double>(coefficients_SR),
                       CutIntoChunks(segments.vec<int64_t>().data(), segment_count),
                       OnWorkerThreadsOf(context), MutableElements<T>(combined_N));
  }
};

}  // namespace tf_adasum

TF_ADASUM_REGISTER_CPU_KERNELS(TF_ADASUM_SEGMENT_WEIGHTED_SUM, SegmentWeightedSumOp);
