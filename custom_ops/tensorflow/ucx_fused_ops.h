// Two ops that combine a bucket of gradients over UCX without packing it. Messages use the memory
// of the tensors directly, and the arithmetic on one message overlaps with the transfer of others.
// The "own shards" are the shards that this member combines.
//
//     ScatterGram     sends each other member its shards of this member's gradients; computes the
//                     inner products of the own shards of all members' gradients
//     CombineGather   computes the weighted sums of the own shards, and sends them to all members;
//                     receives the other members' sums in the memory of the combined gradients
//
// Between the two, TensorFlow's ops compute the coefficients from the inner products. Both ops
// return the same bits as the ops on packed buffers: they use the same shards and chunks
// (bucket_shards.h), and add in the same order, in whatever order the messages arrive.
//
// The classes below divide the bucket, manage the steps of a run, and read the arguments.
//
// Shape letters: S gradients, R members of the group, P = R (R + 1) / 2 pairs of members.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../ucx/bucket_shards.h"
#include "absl/status/status.h"
#include "elements.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/threadpool.h"
#include "ucx_runs.h"

namespace tf_adasum {

// A bucket and its shards. In a run, all messages from one member to another have the same tag.
// They match in the order in which both sides start them, which is the order of the parts.
struct Bucket {
  Group group;
  std::vector<MemberShards> shards;  // of each member
  size_t element_size;

  const MemberShards& own() const { return shards[group.member]; }
  size_t BytesOf(const Part& part) const { return part.size() * element_size; }
  char* DataOf(const std::vector<tensorflow::Tensor>& gradients, const Part& part) const {
    return static_cast<char*>(gradients[part.gradient].data()) + part.begin * element_size;
  }
  // Returns the address in `received` of a member's elements of a part of the own shards.
  // `received` holds the elements of the other members, one member after the other.
  char* ReceivedOf(const tensorflow::Tensor& received, int member, const Part& part) const {
    const int64_t row = member - (member > group.member ? 1 : 0);
    return static_cast<char*>(received.data()) + (row * own().elements + part.at) * element_size;
  }
  // Returns the messages for all parts of the other members' shards: the first part of each member,
  // then the second part of each member, and so on. `neighbour` and `message` are `Target` and
  // `SendMessage`, or `Source` and `ReceiveMessage`.
  std::vector<Message> OtherMembersMessages(int (Group::*neighbour)(int) const,
                                            Message (Group::*message)(const Key&, int, char*,
                                                                      size_t) const,
                                            const Key& key,
                                            const std::vector<tensorflow::Tensor>& gradients) const;
  // Returns the addresses of all members' elements of a part of the own shards.
  template <typename T>
  std::vector<const T*> RowsOf(const std::vector<tensorflow::Tensor>& gradients,
                               const tensorflow::Tensor& received, const Part& part) const {
    std::vector<const T*> rows;
    for (int i = 0; i < group.size(); ++i) {
      rows.push_back(reinterpret_cast<const T*>(i == group.member ? DataOf(gradients, part)
                                                                  : ReceivedOf(received, i, part)));
    }
    return rows;
  }
};

// One run of an op. It consists of steps, which are messages, arithmetic or both. It ends after the
// last step, at the first failure, or when it is cancelled. Messages in progress then continue, in
// memory that this object owns.
class FusedRun : public std::enable_shared_from_this<FusedRun> {
 public:
  FusedRun(std::shared_ptr<const Bucket> bucket, tensorflow::OpKernelContext* context,
           tensorflow::AsyncOpKernel::DoneCallback done);
  virtual ~FusedRun() = default;

  // Starts the run. After this call, the run does not use the op object.
  void Start(const Key& key);

 protected:
  // Returns how many times the run has to call `FinishStep`.
  virtual size_t CountSteps() const = 0;
  virtual void StartSteps() = 0;
  // Does the remaining work after the last step.
  virtual void Complete() {}

  // Starts messages, and calls `then` after the last one, unless the run has ended before. `then`
  // has to call `FinishStep`, or to schedule work that calls it.
  void StartExchange(std::vector<Message> receives, std::vector<Message> sends,
                     std::function<void()> then);

  // Runs arithmetic on one of TensorFlow's threads, unless the run has ended before.
  void Schedule(std::function<void()> work);

  void FinishStep();

  const std::shared_ptr<const Bucket> bucket_;
  Key key_{};

 private:
  tensorflow::thread::ThreadPool* const workers_;
  Completion completion_;
  std::atomic<size_t> left_{0};
};

class FusedOp : public tensorflow::AsyncOpKernel {
 public:
  explicit FusedOp(tensorflow::OpKernelConstruction* context);

 protected:
  // Reads the gradients, and divides the bucket. Later runs reuse the division if the sizes of the
  // gradients are the same.
  absl::Status Divide(tensorflow::OpKernelContext* context,
                      std::vector<tensorflow::Tensor>* gradients,
                      std::shared_ptr<const Bucket>* bucket);

  Group group_;

 private:
  absl::Status CheckSizes(const std::vector<int64_t>& sizes) const;

  std::vector<int64_t> segments_;
  int64_t width_ = 0;

  std::mutex mutex_;
  std::vector<int64_t> sizes_;            // guarded by mutex_
  std::shared_ptr<const Bucket> bucket_;  // guarded by mutex_
};

}  // namespace tf_adasum
