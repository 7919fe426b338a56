// TfAdasumPairwiseCombine on the CPU: the Gram matrix of the pair, its coefficients, their weighted
// sum.
//
// Bytes: 5·N·sizeof(T): both tensors are read twice, because the coefficients need the whole of a
// segment, and the result is written once.
//
// Example: a = [1, 0, 3], b = [0, 2, 3], segments = [0, 2, 3]
//     segment 0: a·b = 0, so the sum, [1, 2]
//     segment 1: a = b, so the average, [3]
#include "gram.h"
#include "op_arguments.h"
#include "pairwise_coefficients.h"
#include "weighted_sum.h"

namespace tf_adasum {

template <typename T>
class PairwiseCombineOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& a = context->input(0);
    const tensorflow::Tensor& b = context->input(1);
    const tensorflow::Tensor& segments = context->input(2);
    OP_REQUIRES(context, a.shape() == b.shape(),
                absl::InvalidArgumentError(absl::StrCat("b: expected the shape of a, ",
                                                        a.shape().DebugString(), ", received ",
                                                        b.shape().DebugString())));
    OP_REQUIRES_OK(context, CheckSegments(segments, a.NumElements()));
    const int64_t segment_count = segments.dim_size(0) - 1;

    tensorflow::Tensor* combined = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0, 1}, 0, a.shape(), &combined));

    const KeepSubnormals keep_subnormals;
    const std::vector<const typename ElementOf<T>::type*> pair = {Elements<T>(a), Elements<T>(b)};
    const std::vector<Chunk> chunks = CutIntoChunks(segments.vec<int64_t>().data(), segment_count);
    const ParallelFor parallel_for = OnWorkerThreadsOf(context);

    std::vector<double> gram_S22(segment_count * 4);
    SegmentGram(pair, chunks, segment_count, parallel_for, gram_S22.data());

    std::vector<double> coefficients_S2(segment_count * 2);
    for (int64_t s = 0; s < segment_count; ++s) {
      const double* gram_22 = &gram_S22[s * 4];
      const PairwiseCoefficients c = CombinePair(gram_22[0], gram_22[1], gram_22[3]);
      coefficients_S2[s * 2] = c.of_a;
      coefficients_S2[s * 2 + 1] = c.of_b;
    }
    SegmentWeightedSum(pair, coefficients_S2.data(), chunks, parallel_for,
                       MutableElements<T>(combined));
  }
};

}  // namespace tf_adasum

TF_ADASUM_REGISTER_CPU_KERNELS("TfAdasumPairwiseCombine", PairwiseCombineOp);
