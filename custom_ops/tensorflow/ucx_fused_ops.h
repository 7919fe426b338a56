// A bucket of gradients, combined over UCX without packing it: messages go straight from and to the
// memory of the gradients, and the arithmetic of each is done while others are under way.
//
//     ScatterGram     sends every member its shards of the own gradients; takes the inner products
//                     of what arrives
//     CombineGather   sums the own shards with the coefficients, and sends them to all members;
//                     what arrives goes to the memory of the combined gradients
//
// Between the two, TensorFlow's operations make coefficients of the inner products. Both have the
// bits of the operations on packed buffers: the same shards and chunks (bucket_shards.h), and sums
// in the same order, whatever arrives first.
//
// What the two share: the division of the bucket, the steps of a run, and the arguments.
//
// Shape letters: S gradients, R members of the group, P = R (R + 1) / 2 pairs of them.
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

// What both ops know of a bucket. Messages between two members have one tag: they match in the
// order in which both sides start them, that of the parts.
struct Bucket {
  Group group;
  std::vector<MemberShards> shards;  // of each member
  size_t element_size;

  const MemberShards& own() const { return shards[group.member]; }
  size_t BytesOf(const Part& part) const { return part.size() * element_size; }
  char* DataOf(const std::vector<tensorflow::Tensor>& gradients, const Part& part) const {
    return static_cast<char*>(gradients[part.gradient].data()) + part.begin * element_size;
  }
  // Where a part of the own shards is in what was received: after all of the members before.
  char* ReceivedOf(const tensorflow::Tensor& received, int member, const Part& part) const {
    const int64_t row = member - (member > group.member ? 1 : 0);
    return static_cast<char*>(received.data()) + (row * own().elements + part.at) * element_size;
  }
  // Messages of all parts of the other members' shards: the first part of each, then the second of
  // each, …. `neighbour` and `message` are those of a target or those of a source.
  std::vector<Message> OthersParts(int (Group::*neighbour)(int) const,
                                   Message (Group::*message)(const Key&, int, char*, size_t) const,
                                   const Key& key,
                                   const std::vector<tensorflow::Tensor>& gradients) const;
  // All members' elements of a part of the own shards.
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

// One run of an op: steps, each of which is messages or arithmetic. It ends with the last of them,
// or with the first failure; then what is under way goes on, in memory that this object owns.
class FusedRun : public std::enable_shared_from_this<FusedRun> {
 public:
  FusedRun(std::shared_ptr<const Bucket> bucket, tensorflow::OpKernelContext* context,
           tensorflow::AsyncOpKernel::DoneCallback done);
  virtual ~FusedRun() = default;

  // Starts what can start. Nothing of the op is touched afterwards.
  void Start(const Key& key);

 protected:
  virtual size_t CountSteps() const = 0;
  virtual void StartSteps() = 0;
  // What is left to do after the last step.
  virtual void Complete() {}

  // A step: messages, and what to do after the last one, if none has failed. That has to end with
  // `EndStep`, or lead to it.
  void Exchanges(std::vector<Message> receives, std::vector<Message> sends,
                 std::function<void()> then);

  // Arithmetic, on one of TensorFlow's threads.
  void Schedule(std::function<void()> work);

  void EndStep();

  const std::shared_ptr<const Bucket> bucket_;
  Key key_{};

 private:
  tensorflow::thread::ThreadPool* const workers_;
  Ending ending_;
  std::atomic<size_t> left_{0};
};

class FusedOp : public tensorflow::AsyncOpKernel {
 public:
  explicit FusedOp(tensorflow::OpKernelConstruction* context);

 protected:
  // Reads the gradients, and finds how they are divided: in the first run, as sizes stay the same.
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
