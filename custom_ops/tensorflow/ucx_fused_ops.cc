#include "ucx_fused_ops.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tf_adasum {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

std::vector<Message> Bucket::OtherMembersMessages(int (Group::*neighbour)(int) const,
                                                  Message (Group::*message)(const Key&, int, char*,
                                                                            size_t) const,
                                                  const Key& key,
                                                  const std::vector<Tensor>& gradients) const {
  size_t most = 0;
  for (const MemberShards& each : shards) most = std::max(most, each.parts.size());
  std::vector<Message> messages;
  for (size_t p = 0; p < most; ++p) {
    for (int i = 1; i < group.size(); ++i) {
      const int other = (group.*neighbour)(i);
      const auto& parts = shards[other].parts;
      if (p >= parts.size()) continue;
      messages.push_back(
          (group.*message)(key, other, DataOf(gradients, parts[p]), BytesOf(parts[p])));
    }
  }
  return messages;
}

FusedRun::FusedRun(std::shared_ptr<const Bucket> bucket, OpKernelContext* context,
                   tensorflow::AsyncOpKernel::DoneCallback done)
    : bucket_(std::move(bucket)),
      workers_(context->device()->tensorflow_cpu_worker_threads()->workers),
      completion_(context, std::move(done)) {}

void FusedRun::Start(const Key& key) {
  key_ = key;
  left_ = CountSteps();
  completion_.OnCancellation([self = shared_from_this()] {
    Exchange nothing;
    nothing.done = [self](const std::string&) { self->completion_.End(kCancelled); };
    self->bucket_->group.mesh->Start(std::move(nothing));
  });
  StartSteps();
  completion_.FinishStart();
}

void FusedRun::StartExchange(std::vector<Message> receives, std::vector<Message> sends,
                             std::function<void()> then) {
  Exchange exchange;
  exchange.receives = std::move(receives);
  exchange.sends = std::move(sends);
  const auto self = shared_from_this();
  exchange.memory = self;
  exchange.done = [self, then = std::move(then)](const std::string& failure) {
    if (!failure.empty()) return self->completion_.End(failure);
    if (!self->completion_.has_ended()) then();
  };
  bucket_->group.mesh->Start(std::move(exchange));
}

void FusedRun::Schedule(std::function<void()> work) {
  workers_->Schedule([self = shared_from_this(), work = std::move(work)] {
    if (self->completion_.has_ended()) return;
    const KeepSubnormals keep_subnormals;
    work();
  });
}

void FusedRun::FinishStep() {
  if (left_.fetch_sub(1) > 1) return;
  Complete();
  completion_.End("");
}

FusedOp::FusedOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
  OP_REQUIRES_OK(context, group_.Read(context));
  OP_REQUIRES_OK(context, context->GetAttr("segments", &segments_));
  OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
  OP_REQUIRES(context, width_ > 0 && width_ % group_.size() == 0,
              absl::InvalidArgumentError(absl::StrCat(
                  "width: expected a multiple of the number of members, received ", width_)));
}

absl::Status FusedOp::Divide(OpKernelContext* context, std::vector<Tensor>* gradients,
                             std::shared_ptr<const Bucket>* bucket) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list("gradients", &list));
  gradients->assign(list.begin(), list.end());
  std::vector<int64_t> sizes;
  for (const Tensor& gradient : *gradients) sizes.push_back(gradient.NumElements());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bucket_ == nullptr || sizes != sizes_) {
    TF_RETURN_IF_ERROR(CheckSizes(sizes));
    auto made = std::make_shared<Bucket>();
    made->group = group_;
    made->shards = DivideBucket(sizes, segments_, width_, group_.size());
    made->element_size = DataTypeSize(list[0].dtype());
    bucket_ = std::move(made);
    sizes_ = sizes;
  }
  *bucket = bucket_;
  return absl::OkStatus();
}

absl::Status FusedOp::CheckSizes(const std::vector<int64_t>& sizes) const {
  bool is_good = segments_.size() == sizes.size() + 1 && segments_[0] == 0;
  for (size_t s = 0; is_good && s < sizes.size(); ++s) {
    is_good = segments_[s] + sizes[s] <= segments_[s + 1];
  }
  if (is_good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "segments: expected offsets of segments that are as large as the gradients");
}

}  // namespace tf_adasum
