// Shared code of the ops over UCX: groups and messages, reused memory, and the end of a run.
//
// The ops are asynchronous: no thread of TensorFlow waits, and any number of runs can be in
// progress, in any order. The input `key` distinguishes them: all members of a group use the same
// key for a run of an op, and a different key for each other run.
//
// The ops are not stateful. TensorFlow 2.21 runs the stateful ops of a function one after the
// other, so two stateful ops that wait for each other, e.g. on two devices, would deadlock. A key
// is known only when a function is called, so TensorFlow does not fold or merge the ops.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "../ucx/adasum_ucx.h"
#include "absl/status/status.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_adasum {

// The error message of a run whose step was cancelled.
constexpr char kCancelled[] = "the step was cancelled";

// The bits of a tag, from the highest: 8 bits of the channel, 20 bits of the call, 12 bits of the
// run, 16 bits of the number of the sender among all replicas, and 8 bits of the number of the
// receiver among the replicas of its worker. A tag is reused after 2^8 channels, 2^20 calls, or 2^12 runs within a
// call. By then, the earlier messages with this tag have arrived long ago.
constexpr int kCallBits = 20, kRunBits = 12, kSenderBits = 16, kReceiverBits = 8;

// Identifies a run of an op: the number of the call from Python, and the number of the run within
// this call.
struct Key {
  uint64_t call, run;

  // Reads the input `key`.
  absl::Status Read(tensorflow::OpKernelContext* context);
};

// A group of replicas, and the rank of this replica in it.
struct Group {
  Mesh* mesh = nullptr;
  int channel = 0;
  std::vector<int> members;  // numbers of the group's replicas among all replicas, in rank order
  int member = 0;            // rank of this replica in the group
  int devices = 1;           // number of replicas of each worker

  // Reads the attributes of the op, which have the same names as these fields.
  absl::Status Read(tensorflow::OpKernelConstruction* context);

  int size() const { return static_cast<int>(members.size()); }
  // The ranks of the i-th source and the i-th target of this member, for 0 < i < size(). Every
  // member begins with a different target, so not all of them send to rank 0 at the same time.
  int Source(int i) const { return (member + size() - i) % size(); }
  int Target(int i) const { return (member + i) % size(); }

  Message ReceiveMessage(const Key& key, int source, char* data, size_t bytes) const {
    return {members[source] / devices, Tag(key, members[source], members[member] % devices), data,
            bytes};
  }
  Message SendMessage(const Key& key, int target, char* data, size_t bytes) const {
    return {members[target] / devices, Tag(key, members[member], members[target] % devices), data,
            bytes};
  }

 private:
  uint64_t Tag(const Key& key, int sender, int receiver) const {
    uint64_t tag = channel;  // only the lowest 8 bits stay in the tag
    tag = tag << kCallBits | (key.call & ((1 << kCallBits) - 1));
    tag = tag << kRunBits | (key.run & ((1 << kRunBits) - 1));
    return (tag << kSenderBits | sender) << kReceiverBits | receiver;
  }
};

// The input and the attributes that `Key` and `Group` read, for the registration of an op; and the
// documentation of these arguments.
#define TF_ADASUM_GROUP_ARGUMENTS() \
  Input("key: int64")               \
      .Attr("mesh: int")            \
      .Attr("channel: int")         \
      .Attr("members: list(int)")   \
      .Attr("member: int")          \
      .Attr("devices: int")         \
      .SetIsDistributedCommunication()
#define TF_ADASUM_GROUP_ARGUMENTS_DOC                               \
  "key: Identifies this run; the same on all members.\n"            \
  "mesh: The number of the mesh in this process.\n"                 \
  "channel: The number of the strategy; the same on all members.\n" \
  "members: The numbers of the group's replicas, in rank order.\n"  \
  "member: The rank of this replica in the group.\n"                \
  "devices: The number of replicas of each worker.\n"

// Keeps the memory of a tensor after a run, and reuses it in the next run if it is not in use. The
// page faults of new memory would take as long as the exchange itself.
class ReusedTensor {
 public:
  absl::Status Allocate(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                        const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor);

 private:
  std::mutex mutex_;
  tensorflow::Tensor reused_;  // guarded by mutex_
};

// The end of a run. `done` is called when the run has ended (`End`) and the thread that started it
// has finished (`FinishStart`). After that, the op and its context are not used any more.
class Completion {
 public:
  Completion(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done);

  // Registers `on_cancel`, which is called if the step is cancelled. It must make another thread call
  // `End`. It must not call `End` itself, because `End` may wait until `on_cancel` has returned.
  void OnCancellation(const std::function<void()>& on_cancel);

  // Ends the run, with "" or an error message. Only the first call has an effect.
  void End(const std::string& failure);
  bool has_ended() const { return has_ended_; }

  // The thread that started the run must call this once, as its last action.
  void FinishStart() { FinishPart(); }

 private:
  void FinishPart();

  tensorflow::OpKernelContext* const context_;
  tensorflow::CancellationManager* const manager_;
  tensorflow::AsyncOpKernel::DoneCallback done_;
  tensorflow::CancellationToken token_ = 0;
  bool is_registered_ = false;
  std::string failure_;
  std::atomic<bool> has_ended_{false};
  std::atomic<int> left_{2};
};

}  // namespace tf_adasum
