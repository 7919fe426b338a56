// Collectives over UCX: all-to-all and all-gather among some of the replicas.
//
// They are asynchronous: no thread of TensorFlow waits, and any number of them can be under way, in
// any order. `key` and `turn` tell them apart: all members of a group give one run of an op the same
// two, and another run others.
//
// They are not stateful: TensorFlow 2.21 runs stateful ones of a function one after the other, and
// two of them that wait for each other, as those of two devices, for ever. A key that is known only
// when a function is called keeps them from being folded or merged.
//
// Shape letters: R members of the group, W elements.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../ucx/adasum_ucx.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registration.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "ucx_runs.h"

namespace tf_adasum {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::DataTypeCanUseMemcpy;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// One run of an op. It ends when the messages have ended and the thread that started them is done.
class Run {
 public:
  Run(OpKernelContext* context, AsyncOpKernel::DoneCallback done)
      : context_(context), manager_(context->cancellation_manager()), done_(std::move(done)) {}

  // Starts the messages; they are left where the step is cancelled, as no other step waits for
  // them.
  void Start(Mesh* mesh, Exchange exchange) {
    exchange.done = [this](const std::string& failure) {
      failure_ = failure;
      Finish();
    };
    const uint64_t number = mesh->Start(std::move(exchange));
    if (manager_ == nullptr) return;
    token_ = manager_->get_cancellation_token();
    const auto leave = [mesh, number] { mesh->Leave(number, kCancelled); };
    is_registered_ = manager_->RegisterCallback(token_, leave);
    if (!is_registered_) leave();
  }

  // Called twice. The second call ends the op, and this object.
  void Finish() {
    if (left_.fetch_sub(1) > 1) return;
    if (is_registered_) manager_->DeregisterCallback(token_);
    if (failure_ == kCancelled) {
      context_->SetStatus(absl::CancelledError(failure_));
    } else if (!failure_.empty()) {
      // UNAVAILABLE would be shown as an internal error (seen with TensorFlow 2.21).
      context_->SetStatus(absl::AbortedError(absl::StrCat(kAborted, failure_)));
    }
    const auto done = std::move(done_);
    delete this;
    done();
  }

 private:
  OpKernelContext* const context_;
  CancellationManager* const manager_;
  AsyncOpKernel::DoneCallback done_;
  CancellationToken token_ = 0;
  bool is_registered_ = false;
  std::string failure_;
  std::atomic<int> left_{2};
};

// What both collectives share: from each member come as many bytes as go to it.
class MeshOp : public AsyncOpKernel {
 public:
  explicit MeshOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    int number;
    OP_REQUIRES_OK(context, context->GetAttr("mesh", &number));
    OP_REQUIRES_OK(context, context->GetAttr("members", &members_));
    OP_REQUIRES_OK(context, context->GetAttr("member", &member_));
    OP_REQUIRES_OK(context, context->GetAttr("devices", &devices_));
    mesh_ = FindMesh(number);
    OP_REQUIRES(
        context, mesh_ != nullptr,
        absl::InvalidArgumentError(absl::StrCat("mesh: there is none with number ", number)));
    OP_REQUIRES(context, member_ >= 0 && member_ < Size() && devices_ > 0,
                absl::InvalidArgumentError("member: expected one of members"));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) final {
    const Tensor sent = context->input(0);
    const Tensor& first = context->input(1);
    const Tensor& second = context->input(2);
    const bool is_known = first.dims() == 0 && second.dims() == 0;
    OP_REQUIRES_ASYNC(context, DataTypeCanUseMemcpy(sent.dtype()) && is_known,
                      absl::InvalidArgumentError("expected plain numbers, one key and one turn"),
                      done);
    const Key key{static_cast<uint64_t>(first.scalar<int64_t>()()),
                  static_cast<uint64_t>(second.scalar<int64_t>()())};
    TensorShape shape = sent.shape();
    OP_REQUIRES_OK_ASYNC(context, ReceivedShape(&shape), done);
    Tensor received;
    OP_REQUIRES_OK_ASYNC(context, kept_.Allocate(context, sent.dtype(), shape, &received), done);
    context->set_output(0, received);

    const size_t bytes = received.TotalBytes() / Size();
    char* from = static_cast<char*>(sent.data());
    char* to = static_cast<char*>(received.data());
    const size_t step = SendsShards() ? bytes : 0;
    Exchange exchange;
    exchange.memory = std::make_shared<std::pair<Tensor, Tensor>>(sent, received);
    // Each begins with its neighbour, so that not all send to the first one at once.
    for (int i = 1; i < Size() && bytes > 0; ++i) {
      const int source = (member_ + Size() - i) % Size(), target = (member_ + i) % Size();
      exchange.receives.push_back(
          MessageOf(key, source, member_, source, to + source * bytes, bytes));
      exchange.sends.push_back(
          MessageOf(key, member_, target, target, from + target * step, bytes));
    }
    auto* run = new Run(context, std::move(done));
    run->Start(mesh_, std::move(exchange));
    std::memcpy(to + member_ * bytes, from + member_ * step, bytes);
    run->Finish();
  }

 protected:
  int Size() const { return static_cast<int>(members_.size()); }

 private:
  // Changes the shape of what is sent to that of what is received.
  virtual absl::Status ReceivedShape(TensorShape* shape) const = 0;

  // Whether each member is sent a shard of its own, and not everything.
  virtual bool SendsShards() const = 0;

  // The message from one member to another; `other` is the one that is not here.
  Message MessageOf(const Key& key, int sender, int receiver, int other, char* data,
                    size_t bytes) const {
    const uint64_t tag = key.Tag(members_[sender], members_[receiver] % devices_);
    return {members_[other] / devices_, tag, data, bytes};
  }

  Mesh* mesh_ = nullptr;
  std::vector<int> members_;  // replicas
  int member_ = 0;            // which of them this one is
  int devices_ = 1;           // replicas of a worker
  KeptMemory kept_;
};

class AllToAllOp : public MeshOp {
 public:
  using MeshOp::MeshOp;

 private:
  absl::Status ReceivedShape(TensorShape* shape) const override {
    if (shape->dims() > 0 && shape->dim_size(0) == Size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("shards: expected the shape [", Size(),
                                                   ", ...], received ", shape->DebugString()));
  }
  bool SendsShards() const override { return true; }
};

class AllGatherOp : public MeshOp {
 public:
  using MeshOp::MeshOp;

 private:
  absl::Status ReceivedShape(TensorShape* shape) const override {
    if (shape->dims() == 0) return absl::InvalidArgumentError("value: expected an axis");
    shape->set_dim(0, shape->dim_size(0) * Size());
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
      .Input("key: int64")                \
      .Input("turn: int64")               \
      .Attr("T: type")                    \
      .Attr("mesh: int")                  \
      .Attr("members: list(int)")         \
      .Attr("member: int")                \
      .Attr("devices: int")               \
      .SetIsDistributedCommunication()

TF_ADASUM_COLLECTIVE(TF_ADASUM_UCX_ALL_TO_ALL, "shards").SetShapeFn(AllToAllShape).Doc(R"doc(
Sends row i of shards to member i; row i of the result is from member i.

shards: `[R, ...]`.
key: of this call, the same for all members.
turn: of this run in the call, the same for all members.
received: `[R, ...]`.
mesh: number of the mesh in this process.
members: the replicas of the group, in its order.
member: which of them this one is.
devices: how many replicas each worker has.
)doc");

TF_ADASUM_COLLECTIVE(TF_ADASUM_UCX_ALL_GATHER, "value").SetShapeFn(AllGatherShape).Doc(R"doc(
Concatenates the members' values along the first axis, in the order of the group.

value: `[W, ...]`, of the same shape on all members.
key: of this call, the same for all members.
turn: of this run in the call, the same for all members.
received: `[R W, ...]`.
mesh: number of the mesh in this process.
members: the replicas of the group, in its order.
member: which of them this one is.
devices: how many replicas each worker has.
)doc");

REGISTER_KERNEL_BUILDER(Name(TF_ADASUM_UCX_ALL_TO_ALL).Device(tensorflow::DEVICE_CPU), AllToAllOp);
REGISTER_KERNEL_BUILDER(Name(TF_ADASUM_UCX_ALL_GATHER).Device(tensorflow::DEVICE_CPU), AllGatherOp);

}  // namespace tf_adasum
