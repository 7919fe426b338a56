// Collectives over UCX: all-to-all and all-gather among some of the replicas.
//
// Shape letters: R members of the group, W elements.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registration.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "ucx_runs.h"

namespace tf_adasum {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The base class of both collectives. A member receives as many bytes from each member as it sends
// to it.
class MeshOp : public AsyncOpKernel {
 public:
  explicit MeshOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, group_.Read(context));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) final {
    const Tensor sent = context->input(0);
    Key key;
    OP_REQUIRES_ASYNC(context, DataTypeCanUseMemcpy(sent.dtype()),
                      absl::InvalidArgumentError("expected a numeric dtype"), done);
    OP_REQUIRES_OK_ASYNC(context, key.Read(context), done);
    TensorShape shape = sent.shape();
    OP_REQUIRES_OK_ASYNC(context, ReceivedShape(&shape), done);
    Tensor received;
    OP_REQUIRES_OK_ASYNC(context, reused_.Allocate(context, sent.dtype(), shape, &received), done);
    context->set_output(0, received);

    const size_t bytes = received.TotalBytes() / group_.size();
    char* from = static_cast<char*>(sent.data());
    char* to = static_cast<char*>(received.data());
    const size_t step = SendsShards() ? bytes : 0;
    Exchange exchange;
    for (int i = 1; i < group_.size() && bytes > 0; ++i) {
      const int source = group_.Source(i), target = group_.Target(i);
      exchange.receives.push_back(group_.ReceiveMessage(key, source, to + source * bytes, bytes));
      exchange.sends.push_back(group_.SendMessage(key, target, from + target * step, bytes));
    }
    exchange.memory = std::make_shared<std::pair<Tensor, Tensor>>(sent, received);
    auto completion = std::make_shared<Completion>(context, std::move(done));
    exchange.done = [completion](const std::string& failure) { completion->End(failure); };
    Mesh* mesh = group_.mesh;
    const uint64_t number = mesh->Start(std::move(exchange));
    // After a cancellation, the messages continue. No other step waits for them.
    completion->OnCancellation([mesh, number] { mesh->StopWaiting(number, kCancelled); });
    std::memcpy(to + group_.member * bytes, from + group_.member * step, bytes);
    completion->FinishStart();
  }

 protected:
  Group group_;

 private:
  // Changes `shape` from the shape of the input to the shape of the output, or returns an error.
  virtual absl::Status ReceivedShape(TensorShape* shape) const = 0;

  // Whether each member receives one shard of the input, instead of the whole input.
  virtual bool SendsShards() const = 0;

  ReusedTensor reused_;
};

class AllToAllOp : public MeshOp {
 public:
  using MeshOp::MeshOp;

 private:
  absl::Status ReceivedShape(TensorShape* shape) const override {
    if (shape->dims() > 0 && shape->dim_size(0) == group_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("shards: expected the shape [", group_.size(),
                                                   ", ...], received ", shape->DebugString()));
  }
  bool SendsShards() const override { return true; }
};

class AllGatherOp : public MeshOp {
 public:
  using MeshOp::MeshOp;

 private:
  absl::Status ReceivedShape(TensorShape* shape) const override {
    if (shape->dims() == 0) {
      return absl::InvalidArgumentError("value: expected at least one dimension");
    }
    shape->set_dim(0, shape->dim_size(0) * group_.size());
    return absl::OkStatus();
  }
  bool SendsShards() const override { return false; }
};

absl::Status AllGatherShape(InferenceContext* c) {
  std::vector<int> members;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
  ShapeHandle value, gathered;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &value));
  DimensionHandle rows;
  TF_RETURN_IF_ERROR(c->Multiply(c->Dim(value, 0), static_cast<int>(members.size()), &rows));
  TF_RETURN_IF_ERROR(c->ReplaceDim(value, 0, rows, &gathered));
  c->set_output(0, gathered);
  return absl::OkStatus();
}

absl::Status AllToAllShape(InferenceContext* c) {
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

}  // namespace

#define TF_ADASUM_COLLECTIVE(NAME, INPUT) \
  REGISTER_OP(NAME)                       \
      .Input(INPUT ": T")                 \
      .Output("received: T")              \
      .Attr("T: type")                    \
      .TF_ADASUM_GROUP_ARGUMENTS()

TF_ADASUM_COLLECTIVE(TF_ADASUM_UCX_ALL_TO_ALL, "shards").SetShapeFn(AllToAllShape).Doc(R"doc(
Sends row i of shards to member i; row i of the result is from member i.

shards: `[R, ...]`.
received: `[R, ...]`.
)doc" TF_ADASUM_GROUP_ARGUMENTS_DOC);

TF_ADASUM_COLLECTIVE(TF_ADASUM_UCX_ALL_GATHER, "value").SetShapeFn(AllGatherShape).Doc(R"doc(
Concatenates the members' values along the first axis, in the order of the group.

value: `[W, ...]`, of the same shape on all members.
received: `[R W, ...]`.
)doc" TF_ADASUM_GROUP_ARGUMENTS_DOC);

REGISTER_KERNEL_BUILDER(Name(TF_ADASUM_UCX_ALL_TO_ALL).Device(tensorflow::DEVICE_CPU), AllToAllOp);
REGISTER_KERNEL_BUILDER(Name(TF_ADASUM_UCX_ALL_GATHER).Device(tensorflow::DEVICE_CPU), AllGatherOp);

}  // namespace tf_adasum
