// TfAdasumPairwiseCombine on the CPU: checks the arguments and calls PairwiseCombine.
#include "op_arguments.h"
#include "../cpu/pairwise_combine.h"

namespace tf_adasum {

template <typename T>
class PairwiseCombineOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& a = context->input(0);
    const tensorflow::Tensor& b = context->input(1);
    const tensorflow::Tensor& segments = context->input(2);
    OP_REQUIRES_OK(context, CheckPair(a, b));
    OP_REQUIRES_OK(context, CheckSegments(segments, a.NumElements()));

    tensorflow::Tensor* combined = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0, 1}, 0, a.shape(), &combined));

    const KeepSubnormals keep_subnormals;
    PairwiseCombine(Elements<T>(a), Elements<T>(b),
                    CutIntoChunks(segments.vec<int64_t>().data(), segments.dim_size(0) - 1),
                    OnWorkerThreadsOf(context), MutableElements<T>(combined));
  }
};

}  // namespace tf_adasum

TF_ADASUM_REGISTER_CPU_KERNELS(TF_ADASUM_PAIRWISE_COMBINE, PairwiseCombineOp);
