// The op that sends each other member its shards of this member's gradients, and computes the inner
// products of the own shards; see ucx_fused_ops.h.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "../cpu/chunks.h"
#include "../cpu/gram.h"
#include "absl/status/status.h"
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
class ScatterGramRun : public FusedRun {
 public:
  using FusedRun::FusedRun;

  std::vector<Tensor> gradients;
  Tensor received, gram;
  bool computes_gram = true;

 private:
  // All sends are one step. Each batch of the own shards is one step.
  size_t CountSteps() const override { return 1 + bucket_->own().batches.size(); }

  void StartSteps() override {
    const Group& group = bucket_->group;
    const MemberShards& own = bucket_->own();
    products_.resize(own.chunks * Pairs());
    for (const Batch& batch : own.batches) {
      std::vector<Message> receives;
      for (size_t p = batch.first; p < batch.last; ++p) {
        const Part& part = own.parts[p];
        for (int i = 1; i < group.size(); ++i) {
          const int source = group.Source(i);
          receives.push_back(group.ReceiveMessage(
              key_, source, bucket_->ReceivedOf(received, source, part), bucket_->BytesOf(part)));
        }
      }
      StartExchange(std::move(receives), {}, [this, &batch] {
        if (!computes_gram) return FinishStep();
        Schedule([this, &batch] { ComputeProducts(batch); });
      });
    }
    StartExchange(
        {}, bucket_->OtherMembersMessages(&Group::Target, &Group::SendMessage, key_, gradients),
        [this] { FinishStep(); });
  }

  size_t Pairs() const { return bucket_->group.size() * (bucket_->group.size() + 1) / 2; }

  void ComputeProducts(const Batch& batch) {
    for (size_t p = batch.first; p < batch.last; ++p) {
      const Part& part = bucket_->own().parts[p];
      const auto rows = bucket_->RowsOf<T>(gradients, received, part);
      double* products = &products_[part.first_chunk * Pairs()];
      for (int64_t at = 0; at < part.size(); at += kChunkElements, products += Pairs()) {
        ChunkProducts<T>(rows, {0, at, std::min(at + kChunkElements, part.size())}, products);
      }
    }
    FinishStep();
  }

  // For each gradient, adds the products of the chunks of each shard in chunk order, and then the
  // sums of the shards in the order of the pieces.
  void Complete() override {
    const size_t pairs = Pairs();
    const int members = bucket_->group.size();
    double* const gram_SRR = gram.flat<double>().data();
    std::fill_n(gram_SRR, gram.NumElements(), 0.0);
    if (!computes_gram) return;
    const auto& parts = bucket_->own().parts;
    std::vector<double> sums(pairs);
    for (size_t p = 0; p < parts.size();) {
      const Part& first = parts[p];
      std::fill(sums.begin(), sums.end(), 0.0);
      for (;
           p < parts.size() && parts[p].gradient == first.gradient && parts[p].piece == first.piece;
           ++p) {
        const int64_t chunks = (parts[p].size() + kChunkElements - 1) / kChunkElements;
        const double* products = &products_[parts[p].first_chunk * pairs];
        for (int64_t c = 0; c < chunks; ++c) {
          for (size_t k = 0; k < pairs; ++k) sums[k] += *products++;
        }
      }
      double* const gram_RR = gram_SRR + first.gradient * members * members;
      size_t k = 0;
      for (int i = 0; i < members; ++i) {
        for (int j = i; j < members; ++j) gram_RR[i * members + j] += sums[k++];
      }
    }
    for (double* gram_RR = gram_SRR; gram_RR < gram_SRR + gram.NumElements();
         gram_RR += members * members) {
      for (int i = 0; i < members; ++i) {
        for (int j = 0; j < i; ++j) gram_RR[i * members + j] = gram_RR[j * members + i];
      }
    }
  }

  std::vector<double> products_;  // the inner products of each chunk
};

template <typename T>
class ScatterGramOp : public FusedOp {
 public:
  explicit ScatterGramOp(OpKernelConstruction* context) : FusedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("computes_gram", &computes_gram_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Key key;
    std::vector<Tensor> gradients;
    std::shared_ptr<const Bucket> bucket;
    OP_REQUIRES_OK_ASYNC(context, key.Read(context), done);
    OP_REQUIRES_OK_ASYNC(context, Divide(context, &gradients, &bucket), done);
    Tensor received;
    const int64_t members = group_.size(), variables = gradients.size();
    const TensorShape shape({(members - 1) * bucket->own().elements});
    OP_REQUIRES_OK_ASYNC(context, reused_.Allocate(context, gradients[0].dtype(), shape, &received),
                         done);
    Tensor* gram;
    OP_REQUIRES_OK_ASYNC(
        context, context->allocate_output(0, TensorShape({variables, members, members}), &gram),
        done);
    context->set_output(1, received);

    auto run = std::make_shared<ScatterGramRun<typename ElementOf<T>::type>>(bucket, context,
                                                                             std::move(done));
    run->gradients = std::move(gradients);
    run->received = received;
    run->gram = *gram;
    run->computes_gram = computes_gram_;
    run->Start(key);
  }

 private:
  bool computes_gram_ = true;
  ReusedTensor reused_;
};

absl::Status ScatterGramShape(InferenceContext* c) {
  std::vector<int> members;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
  int gradients;
  TF_RETURN_IF_ERROR(c->GetAttr("S", &gradients));
  const int64_t size = static_cast<int64_t>(members.size());
  c->set_output(0, c->MakeShape({gradients, size, size}));
  c->set_output(1, c->UnknownShapeOfRank(1));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP(TF_ADASUM_UCX_SCATTER_GRAM)
    .Input("gradients: S * T")
    .Output("gram: double")
    .Output("received: T")
    .Attr("S: int >= 1")
    .Attr("T: " TF_ADASUM_TYPES)
    .Attr("segments: list(int)")
    .Attr("width: int")
    .Attr("computes_gram: bool")
    .TF_ADASUM_GROUP_ARGUMENTS()
    .SetShapeFn(ScatterGramShape)
    .Doc(R"doc(
Sends each member its shards of this member's gradients, and computes the inner products of this
member's shards.

gradients: The gradients of the bucket, of the same shapes on all members.
gram: The inner products of this member's shards, of shape [S, R, R]. The sum over all members is
  the inner products of the whole gradients.
received: The elements of the other members' gradients in this member's shards.
segments: S + 1 offsets of the gradients in the bucket. There may be gaps between gradients.
width: The number of bucket elements in a piece, a multiple of R.
computes_gram: Whether to compute the inner products. If false, `gram` is zero.
)doc" TF_ADASUM_GROUP_ARGUMENTS_DOC);

TF_ADASUM_REGISTER_KERNELS(Name(TF_ADASUM_UCX_SCATTER_GRAM).Device(tensorflow::DEVICE_CPU),
                           ScatterGramOp);

}  // namespace tf_adasum
