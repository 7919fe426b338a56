// What the ops over UCX share: their group and its messages, memory that is kept, how a run ends.
//
// They are asynchronous: no thread of TensorFlow waits, and any number of them can be under way, in
// any order. `key` tells them apart: all members of a group give one run of an op the same key, and
// another run another one.
//
// They are not stateful: TensorFlow 2.21 runs stateful ones of a function one after the other, and
// two of them that wait for each other, as those of two devices, for ever. A key that is known only
// when a function is called keeps them from being folded or merged.
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

// The failure of a run whose step was cancelled.
constexpr char kCancelled[] = "the step was cancelled";

// A tag: 8 bits of the channel, 20 of the call, 12 of the run, the sender's number among all replicas,
// the receiver's among those of its worker. Numbers come again after so many channels, calls and runs
// of a call, when the earlier messages with them have long arrived.
constexpr int kCallBits = 20, kRunBits = 12, kSenderBits = 16, kReceiverBits = 8;

struct Key {
  uint64_t call, run;

  // Reads the input `key`.
  absl::Status Read(tensorflow::OpKernelContext* context);
};

// A group of replicas, and which of them this one is.
struct Group {
  Mesh* mesh = nullptr;
  int channel = 0;
  std::vector<int> members;  // replicas
  int member = 0;
  int devices = 1;  // replicas of a worker

  // Reads the attributes of these names.
  absl::Status Read(tensorflow::OpKernelConstruction* context);

  int size() const { return static_cast<int>(members.size()); }
  // Member i calls i = 1, 2, … its neighbours on one side its sources, on the other its targets:
  // not all send to the first one at once.
  int Source(int i) const { return (member + size() - i) % size(); }
  int Target(int i) const { return (member + i) % size(); }

  Message Received(const Key& key, int source, char* data, size_t bytes) const {
    return {members[source] / devices, Tag(key, members[source], members[member] % devices), data,
            bytes};
  }
  Message Sent(const Key& key, int target, char* data, size_t bytes) const {
    return {members[target] / devices, Tag(key, members[member], members[target] % devices), data,
            bytes};
  }

 private:
  uint64_t Tag(const Key& key, int sender, int receiver) const {
    uint64_t tag = channel;  // its upper bits are shifted out
    tag = tag << kCallBits | (key.call & ((1 << kCallBits) - 1));
    tag = tag << kRunBits | (key.run & ((1 << kRunBits) - 1));
    return (tag << kSenderBits | sender) << kReceiverBits | receiver;
  }
};

// In the registration of an op, what `Key` and `Group` read; and in its text.
#define TF_ADASUM_AMONG_A_GROUP() \
  Input("key: int64")             \
      .Attr("mesh: int")          \
      .Attr("channel: int")       \
      .Attr("members: list(int)") \
      .Attr("member: int")        \
      .Attr("devices: int")       \
      .SetIsDistributedCommunication()
#define TF_ADASUM_AMONG_A_GROUP_DOC                       \
  "key: of this run, the same for all members.\n"         \
  "mesh: number of the mesh in this process.\n"           \
  "channel: of the strategy, the same for all members.\n" \
  "members: the replicas of the group, in its order.\n"   \
  "member: which of them this one is.\n"                  \
  "devices: how many replicas each worker has.\n"

// Memory is kept from run to run, and used again when nobody else holds it: the page faults of
// fresh memory take as long as the exchange itself.
class KeptMemory {
 public:
  absl::Status Allocate(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                        const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor);

 private:
  std::mutex mutex_;
  tensorflow::Tensor kept_;  // guarded by mutex_
};

// The end of a run: it has ended, and the thread that started it is done. The later of the two
// tells TensorFlow, after which nothing of the op or of its context is touched.
class Ending {
 public:
  Ending(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done);

  // Has `leave` called where the step is cancelled. It must lead to `End` on another thread: here
  // `End` would wait for `leave`.
  void OnCancellation(const std::function<void()>& leave);

  // The run has ended: with "", or what failed. The first call counts.
  void End(const std::string& failure);
  bool has_ended() const { return has_ended_; }

  // The thread that started the run is done. It calls this once, after all else.
  void EndStart() { Leave(); }

 private:
  void Leave();

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
