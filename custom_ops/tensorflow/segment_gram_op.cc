// TfAdasumSegmentGram on the CPU: checks the arguments and calls SegmentGram.
#include "../cpu/gram.h"
#include "op_arguments.h"

namespace tf_adasum {

template <typename T>
class SegmentGramOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& rows_RN = context->input(0);
    const tensorflow::Tensor& segments = context->input(1);
    OP_REQUIRES_OK(context, CheckRows(rows_RN));
    OP_REQUIRES_OK(context, CheckSegments(segments, rows_RN.dim_size(1)));
    const int64_t row_count = rows_RN.dim_size(0);
    const int64_t segment_count = segments.dim_size(0) - 1;

    tensorflow::Tensor* gram_SRR = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, tensorflow::TensorShape({segment_count, row_count, row_count}),
                                &gram_SRR));
    const KeepSubnormals keep_subnormals;
    SegmentGram(Rows<T>(rows_RN), CutIntoChunks(segments.vec<int64_t>().data(), segment_count),
                segment_count, OnWorkerThreadsOf(context), MutableElements<double>(gram_SRR));
  }
};

}  // namespace tf_adasum

TF_ADASUM_REGISTER_CPU_KERNELS(TF_ADASUM_SEGMENT_GRAM, SegmentGramOp);
