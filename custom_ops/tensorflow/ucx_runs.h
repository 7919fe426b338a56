// What the ops over UCX share: tags of messages, words of failures, and memory that is kept.
#pragma once

#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "huge_pages.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_adasum {

// How TensorFlow's own collectives say it; seams/tensorflow/broken_collectives.py knows it by that.
constexpr char kAborted[] = "Collective ops is aborted by: ";
constexpr char kCancelled[] = "the step was cancelled";

// A tag: 28 bits of the key, 12 of the turn, the sender's number among all replicas, the receiver's
// among those of its worker.
constexpr int kTurnBits = 12, kSenderBits = 16, kReceiverBits = 8;

struct Key {
  uint64_t key, turn;

  uint64_t Tag(int sender, int receiver) const {
    const uint64_t number = key << kTurnBits | (turn & ((1 << kTurnBits) - 1));
    return (number << kSenderBits | sender) << kReceiverBits | receiver;
  }
};

// Memory is kept from run to run, and used again when nobody else holds it: the page faults of
// fresh memory take as long as the exchange itself.
class KeptMemory {
 public:
  absl::Status Allocate(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                        const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!kept_.IsInitialized() || kept_.shape() != shape || !kept_.RefCountIsOne()) {
      kept_ = tensorflow::Tensor();
      const absl::Status status = context->allocate_temp(dtype, shape, &kept_);
      if (!status.ok()) return status;
      PreferHugePages(kept_.data(), kept_.TotalBytes());
    }
    *tensor = kept_;
    return absl::OkStatus();
  }

 private:
  std::mutex mutex_;
  tensorflow::Tensor kept_;  // guarded by mutex_
};

}  // namespace tf_adasum
