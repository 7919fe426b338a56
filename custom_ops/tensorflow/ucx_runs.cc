#include "ucx_runs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "huge_pages.h"

namespace tf_adasum {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Errors of TensorFlow's own collectives contain this text, by which
// compat/tensorflow/broken_collectives.py detects them.
constexpr char kAborted[] = "Collective ops is aborted by: ";

}  // namespace

absl::Status Key::Read(OpKernelContext* context) {
  const Tensor* key;
  TF_RETURN_IF_ERROR(context->input("key", &key));
  if (key->dims() != 0) return absl::InvalidArgumentError("key: expected one number");
  const auto number = static_cast<uint64_t>(key->scalar<int64_t>()());
  call = number >> 24;  // compat/tensorflow/collective_keys.py composes the key
  run = number & 0xffffff;
  return absl::OkStatus();
}

absl::Status Group::Read(OpKernelConstruction* context) {
  int number;
  TF_RETURN_IF_ERROR(context->GetAttr("mesh", &number));
  TF_RETURN_IF_ERROR(context->GetAttr("channel", &channel));
  TF_RETURN_IF_ERROR(context->GetAttr("members", &members));
  TF_RETURN_IF_ERROR(context->GetAttr("member", &member));
  TF_RETURN_IF_ERROR(context->GetAttr("devices", &devices));
  mesh = FindMesh(number);
  if (mesh == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("mesh: no mesh has the number ", number));
  }
  if (member < 0 || member >= size() || devices <= 0) {
    return absl::InvalidArgumentError(
        "member: expected a rank in `members`; devices: expected at least 1");
  }
  return absl::OkStatus();
}

absl::Status ReusedTensor::Allocate(OpKernelContext* context, tensorflow::DataType dtype,
                                    const tensorflow::TensorShape& shape, Tensor* tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!reused_.IsInitialized() || reused_.shape() != shape || !reused_.RefCountIsOne()) {
    reused_ = Tensor();
    TF_RETURN_IF_ERROR(context->allocate_temp(dtype, shape, &reused_));
    PreferHugePages(reused_.data(), reused_.TotalBytes());
  }
  *tensor = reused_;
  return absl::OkStatus();
}

Completion::Completion(OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done)
    : context_(context), manager_(context->cancellation_manager()), done_(std::move(done)) {}

void Completion::OnCancellation(const std::function<void()>& on_cancel) {
  if (manager_ == nullptr) return;
  token_ = manager_->get_cancellation_token();
  is_registered_ = manager_->RegisterCallback(token_, on_cancel);
  if (!is_registered_) on_cancel();
}

void Completion::End(const std::string& failure) {
  if (has_ended_.exchange(true)) return;
  failure_ = failure;
  FinishPart();
}

void Completion::FinishPart() {
  if (left_.fetch_sub(1) > 1) return;
  if (is_registered_) manager_->DeregisterCallback(token_);
  if (failure_ == kCancelled) {
    context_->SetStatus(absl::CancelledError(failure_));
  } else if (!failure_.empty()) {
    // TensorFlow would report UNAVAILABLE as an internal error (observed with TensorFlow 2.21).
    context_->SetStatus(absl::AbortedError(absl::StrCat(kAborted, failure_)));
  }
  const auto done = std::move(done_);
  done();
}

}  // namespace tf_adasum
