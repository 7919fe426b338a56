// The op that computes the weighted sums of the own shards, and gathers the sums of all members;
// see ucx_fused_ops.h.
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../cpu/weighted_sum.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registration.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "ucx_fused_ops.h"

namespace tf_adasum {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

template <typename T>
class CombineGatherRun : public FusedRun {
 public:
  using FusedRun::FusedRun;

  std::vector<Tensor> gradients, combined;
  Tensor received, coefficients;

 private:
  // All receives are one step. Each batch has two steps: its arithmetic and its sends.
  size_t CountSteps() const override { return 1 + 2 * bucket_->own().batches.size(); }

  void StartSteps() override {
    StartExchange(
        bucket_->OtherMembersMessages(&Group::Source, &Group::ReceiveMessage, key_, combined), {},
        [this] { FinishStep(); });
    const size_t batches = bucket_->own().batches.size();
    is_summed_.resize(batches);
    // The thread that starts first takes the first batch, the next thread the second batch.
    for (size_t b = 0; b < batches; ++b) Schedule([this] { Sum(next_batch_.fetch_add(1)); });
  }

  void Sum(size_t number) {
    const Batch& batch = bucket_->own().batches[number];
    const auto* coefficients_SR = coefficients.flat<double>().data();
    for (size_t p = batch.first; p < batch.last; ++p) {
      const Part& part = bucket_->own().parts[p];
      const auto rows = bucket_->RowsOf<T>(gradients, received, part);
      ChunkWeightedSum<T>(rows, coefficients_SR + part.gradient * rows.size(), {0, 0, part.size()},
                          reinterpret_cast<T*>(bucket_->DataOf(combined, part)));
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_summed_[number] = true;
      while (next_send_ < is_summed_.size() && is_summed_[next_send_]) Send(next_send_++);
    }
    FinishStep();
  }

  // Called in the order of the batches, with `mutex_` locked.
  void Send(size_t number) {
    const Group& group = bucket_->group;
    const Batch& batch = bucket_->own().batches[number];
    std::vector<Message> sends;
    for (size_t p = batch.first; p < batch.last; ++p) {
      const Part& part = bucket_->own().parts[p];
      for (int i = 1; i < group.size(); ++i) {
        sends.push_back(group.SendMessage(key_, group.Target(i), bucket_->DataOf(combined, part),
                                          bucket_->BytesOf(part)));
      }
    }
    StartExchange({}, std::move(sends), [this] { FinishStep(); });
  }

  std::atomic<size_t> next_batch_{0};
  std::mutex mutex_;
  std::vector<char> is_summed_;  // guarded by mutex_, for each batch
  size_t next_send_ = 0;         // guarded by mutex_
};

template <typename T>
class CombineGatherOp : public FusedOp {
 public:
  explicit CombineGatherOp(OpKernelConstruction* context)
      : FusedOp(context), reused_(context->num_outputs()) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Key key;
    std::vector<Tensor> gradients;
    std::shared_ptr<const Bucket> bucket;
    OP_REQUIRES_OK_ASYNC(context, key.Read(context), done);
    OP_REQUIRES_OK_ASYNC(context, Divide(context, &gradients, &bucket), done);
    const Tensor *received, *coefficients;
    OP_REQUIRES_OK_ASYNC(context, context->input("received", &received), done);
    OP_REQUIRES_OK_ASYNC(context, context->input("coefficients", &coefficients), done);
    OP_REQUIRES_OK_ASYNC(context, CheckReceived(*bucket, *received), done);
    const TensorShape expected({static_cast<int64_t>(gradients.size()), group_.size()});
    OP_REQUIRES_ASYNC(context, coefficients->shape() == expected,
                      absl::InvalidArgumentError(absl::StrCat(
                          "coefficients: expected the shape [S, R] = ", expected.DebugString(),
                          ", received ", coefficients->shape().DebugString())),
                      done);
    std::vector<Tensor> combined(gradients.size());
    for (size_t s = 0; s < gradients.size(); ++s) {
      OP_REQUIRES_OK_ASYNC(
          context,
          reused_[s].Allocate(context, gradients[s].dtype(), gradients[s].shape(), &combined[s]),
          done);
      context->set_output(s, combined[s]);
    }

    auto run = std::make_shared<CombineGatherRun<typename ElementOf<T>::type>>(bucket, context,
                                                                               std::move(done));
    run->gradients = std::move(gradients);
    run->combined = std::move(combined);
    run->received = *received;
    run->coefficients = *coefficients;
    run->Start(key);
  }

 private:
  absl::Status CheckReceived(const Bucket& bucket, const Tensor& received) const {
    const int64_t expected = (group_.size() - 1) * bucket.own().elements;
    if (received.NumElements() == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("received: expected ", expected,
                                                   " elements, received ", received.NumElements()));
  }

  std::vector<ReusedTensor> reused_;  // for each combined gradient
};

absl::Status CombineGatherShape(InferenceContext* c) {
  for (int s = 0; s < c->num_outputs(); ++s) c->set_output(s, c->input(s));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP(TF_ADASUM_UCX_COMBINE_GATHER)
    .Input("gradients: S * T")
    .Input("received: T")
    .Input("coefficients: double")
    .Output("combined: S * T")
    .Attr("S: int >= 1")
    .Attr("T: " TF_ADASUM_TYPES)
    .Attr("segments: list(int)")
    .Attr("width: int")
    .TF_ADASUM_GROUP_ARGUMENTS()
    .SetShapeFn(CombineGatherShape)
    .Doc(R"doc(
Combines this member's shards of a bucket, and gathers the combined shards of all members.

gradients: As for the scatter op.
received: The output `received` of the scatter op.
coefficients: One for each gradient and member, of shape [S, R], the same on all members.
combined: For each gradient, the sum over i of coefficients[s, i] times the gradient of member i.
segments: As for the scatter op.
width: As for the scatter op.
)doc" TF_ADASUM_GROUP_ARGUMENTS_DOC);

TF_ADASUM_REGISTER_KERNELS(Name(TF_ADASUM_UCX_COMBINE_GATHER).Device(tensorflow::DEVICE_CPU),
                           CombineGatherOp);

}  // namespace tf_adasum
