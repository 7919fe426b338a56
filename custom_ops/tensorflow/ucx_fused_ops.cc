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
// As for the ops of ucx_ops.cc, no thread waits, and none is stateful.
//
// Shape letters: S gradients, R members of the group, P = R (R + 1) / 2 pairs of them.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../cpu/chunks.h"
#include "../cpu/gram.h"
#include "../cpu/weighted_sum.h"
#include "../ucx/adasum_ucx.h"
#include "../ucx/bucket_shards.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "elements.h"
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
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// A group of replicas, and which of them this one is.
struct Group {
  std::vector<int> members;  // replicas
  int member = 0;
  int devices = 1;  // replicas of a worker

  int size() const { return static_cast<int>(members.size()); }
  // Member i calls i = 1, 2, … its neighbours on one side its sources, on the other its targets:
  // not all send to the first one at once.
  int Source(int i) const { return (member + size() - i) % size(); }
  int Target(int i) const { return (member + i) % size(); }

  Message Received(const Key& key, int source, char* data, size_t bytes) const {
    return {members[source] / devices, key.Tag(members[source], members[member] % devices), data,
            bytes};
  }
  Message Sent(const Key& key, int target, const char* data, size_t bytes) const {
    return {members[target] / devices, key.Tag(members[member], members[target] % devices),
            const_cast<char*>(data), bytes};
  }
};

// What both ops know of a bucket. Messages between two members have one tag: they match in the
// order in which both sides start them, that of the parts.
struct Bucket {
  Group group;
  std::vector<MemberShards> shards;  // of each member
  size_t element_size;

  const MemberShards& own() const { return shards[group.member]; }
  size_t BytesOf(const Part& part) const { return part.size() * element_size; }
  char* DataOf(const std::vector<Tensor>& gradients, const Part& part) const {
    return static_cast<char*>(gradients[part.gradient].data()) + part.begin * element_size;
  }
  // Where a part of the own shards is in what was received: after all of the members before.
  char* ReceivedOf(const Tensor& received, int member, const Part& part) const {
    const int64_t row = member - (member > group.member ? 1 : 0);
    return static_cast<char*>(received.data()) + (row * own().elements + part.at) * element_size;
  }
  // All members' elements of a part of the own shards.
  template <typename T>
  std::vector<const T*> RowsOf(const std::vector<Tensor>& gradients, const Tensor& received,
                               const Part& part) const {
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
  FusedRun(std::shared_ptr<const Bucket> bucket, Mesh* mesh, OpKernelContext* context,
           AsyncOpKernel::DoneCallback done)
      : bucket_(std::move(bucket)),
        mesh_(mesh),
        workers_(context->device()->tensorflow_cpu_worker_threads()->workers),
        context_(context),
        manager_(context->cancellation_manager()),
        done_(std::move(done)) {}
  virtual ~FusedRun() = default;

  // Starts what can start. Nothing of the op is touched afterwards.
  void Start(const Key& key) {
    key_ = key;
    left_ = CountSteps();
    if (manager_ != nullptr) {
      token_ = manager_->get_cancellation_token();
      const auto self = shared_from_this();
      // On the thread of the mesh: here it would wait for itself.
      const auto leave = [self] {
        Exchange nothing;
        nothing.done = [self](const std::string&) { self->End(kCancelled); };
        self->mesh_->Start(std::move(nothing));
      };
      is_registered_ = manager_->RegisterCallback(token_, leave);
      if (!is_registered_) leave();
    }
    StartSteps();
    Leave();
  }

 protected:
  virtual size_t CountSteps() const = 0;
  virtual void StartSteps() = 0;
  // What is left to do after the last step.
  virtual void Complete() {}

  // A step: messages, and what to do after the last one, if none has failed. That has to end with
  // `EndStep`, or lead to it.
  void Exchanges(std::vector<Message> receives, std::vector<Message> sends,
                 std::function<void()> then) {
    Exchange exchange;
    exchange.receives = std::move(receives);
    exchange.sends = std::move(sends);
    const auto self = shared_from_this();
    exchange.memory = self;
    exchange.done = [self, then = std::move(then)](const std::string& failure) {
      if (!failure.empty()) return self->End(failure);
      if (!self->is_told_) then();
    };
    mesh_->Start(std::move(exchange));
  }

  // Arithmetic, on one of TensorFlow's threads.
  void Schedule(std::function<void()> work) {
    workers_->Schedule([self = shared_from_this(), work = std::move(work)] {
      if (self->is_told_) return;
      const KeepSubnormals keep_subnormals;
      work();
    });
  }

  void EndStep() {
    if (left_.fetch_sub(1) > 1) return;
    Complete();
    End("");
  }

  const std::shared_ptr<const Bucket> bucket_;
  Key key_{};

 private:
  void End(const std::string& failure) {
    if (is_told_.exchange(true)) return;
    failure_ = failure;
    Leave();
  }

  // Called by the thread that has started the run, and at its end: the later one tells TensorFlow.
  void Leave() {
    if (leaving_.fetch_sub(1) > 1) return;
    if (is_registered_) manager_->DeregisterCallback(token_);
    if (failure_ == kCancelled) {
      context_->SetStatus(absl::CancelledError(failure_));
    } else if (!failure_.empty()) {
      context_->SetStatus(absl::AbortedError(absl::StrCat(kAborted, failure_)));
    }
    const auto done = std::move(done_);
    done();
  }

  Mesh* const mesh_;
  tensorflow::thread::ThreadPool* const workers_;
  OpKernelContext* const context_;  // until the end is told
  CancellationManager* const manager_;
  AsyncOpKernel::DoneCallback done_;
  CancellationToken token_ = 0;
  bool is_registered_ = false;
  std::string failure_;
  std::atomic<size_t> left_{0};
  std::atomic<bool> is_told_{false};
  std::atomic<int> leaving_{2};
};

// ---- ScatterGram --------------------------------------------------------------------------------

template <typename T>
class ScatterGramRun : public FusedRun {
 public:
  using FusedRun::FusedRun;

  std::vector<Tensor> gradients;
  Tensor received, gram;
  bool takes_products = true;

 private:
  // The sends, and each batch of the own shards.
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
          receives.push_back(group.Received(
              key_, source, bucket_->ReceivedOf(received, source, part), bucket_->BytesOf(part)));
        }
      }
      Exchanges(std::move(receives), {}, [this, &batch] {
        if (!takes_products) return EndStep();
        Schedule([this, &batch] { TakeProducts(batch); });
      });
    }
    std::vector<Message> sends;
    size_t most = 0;
    for (const MemberShards& shards : bucket_->shards) most = std::max(most, shards.parts.size());
    for (size_t p = 0; p < most; ++p) {
      for (int i = 1; i < group.size(); ++i) {
        const auto& parts = bucket_->shards[group.Target(i)].parts;
        if (p >= parts.size()) continue;
        sends.push_back(group.Sent(key_, group.Target(i), bucket_->DataOf(gradients, parts[p]),
                                   bucket_->BytesOf(parts[p])));
      }
    }
    Exchanges({}, std::move(sends), [this] { EndStep(); });
  }

  size_t Pairs() const { return bucket_->group.size() * (bucket_->group.size() + 1) / 2; }

  void TakeProducts(const Batch& batch) {
    for (size_t p = batch.first; p < batch.last; ++p) {
      const Part& part = bucket_->own().parts[p];
      const auto rows = bucket_->RowsOf<T>(gradients, received, part);
      double* products = &products_[part.first_chunk * Pairs()];
      for (int64_t at = 0; at < part.size(); at += kChunkElements, products += Pairs()) {
        ChunkProducts<T>(rows, {0, at, std::min(at + kChunkElements, part.size())}, products);
      }
    }
    EndStep();
  }

  // Adds the chunks of a gradient's shard in their order, and then its shards in theirs.
  void Complete() override {
    const size_t pairs = Pairs();
    const int members = bucket_->group.size();
    double* const gram_SRR = gram.flat<double>().data();
    std::fill_n(gram_SRR, gram.NumElements(), 0.0);
    if (!takes_products) return;
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

  std::vector<double> products_;  // of each chunk
};

// ---- CombineGather ------------------------------------------------------------------------------

template <typename T>
class CombineGatherRun : public FusedRun {
 public:
  using FusedRun::FusedRun;

  std::vector<Tensor> gradients, combined;
  Tensor received, coefficients;

 private:
  // The receives, and of each batch the arithmetic and the sends.
  size_t CountSteps() const override { return 1 + 2 * bucket_->own().batches.size(); }

  void StartSteps() override {
    const Group& group = bucket_->group;
    std::vector<Message> receives;
    size_t most = 0;
    for (const MemberShards& shards : bucket_->shards) most = std::max(most, shards.parts.size());
    for (size_t p = 0; p < most; ++p) {
      for (int i = 1; i < group.size(); ++i) {
        const auto& parts = bucket_->shards[group.Source(i)].parts;
        if (p >= parts.size()) continue;
        receives.push_back(group.Received(key_, group.Source(i),
                                          bucket_->DataOf(combined, parts[p]),
                                          bucket_->BytesOf(parts[p])));
      }
    }
    Exchanges(std::move(receives), {}, [this] { EndStep(); });
    const size_t batches = bucket_->own().batches.size();
    is_summed_.resize(batches);
    // Whichever thread comes first takes the first batch.
    for (size_t b = 0; b < batches; ++b) Schedule([this] { Sum(next_batch_.fetch_add(1)); });
  }

  void Sum(size_t number) {
    const Batch& batch = bucket_->own().batches[number];
    const auto* coefficients_SR = coefficients.flat<double>().data();
    for (size_t p = batch.first; p < batch.last; ++p) {
      const Part& part = bucket_->own().parts[p];
      const auto rows = bucket_->RowsOf<T>(gradients, received, part);
      ChunkWeightedSum<T>(rows, coefficients_SR + part.gradient * rows.size(), {0, 0, part.size()},
                          reinterpret_cast<T*>(bucket_->DataOf(combined, part)));
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_summed_[number] = true;
      while (next_send_ < is_summed_.size() && is_summed_[next_send_]) Send(next_send_++);
    }
    EndStep();
  }

  // Called in the order of the batches.
  void Send(size_t number) {
    const Group& group = bucket_->group;
    const Batch& batch = bucket_->own().batches[number];
    std::vector<Message> sends;
    for (size_t p = batch.first; p < batch.last; ++p) {
      const Part& part = bucket_->own().parts[p];
      for (int i = 1; i < group.size(); ++i) {
        sends.push_back(group.Sent(key_, group.Target(i), bucket_->DataOf(combined, part),
                                   bucket_->BytesOf(part)));
      }
    }
    Exchanges({}, std::move(sends), [this] { EndStep(); });
  }

  std::atomic<size_t> next_batch_{0};
  std::mutex mutex_;
  std::vector<char> is_summed_;  // guarded by mutex_, for each batch
  size_t next_send_ = 0;         // guarded by mutex_
};

// ---- the ops ------------------------------------------------------------------------------------

class FusedOp : public AsyncOpKernel {
 public:
  explicit FusedOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    int number;
    OP_REQUIRES_OK(context, context->GetAttr("mesh", &number));
    OP_REQUIRES_OK(context, context->GetAttr("members", &group_.members));
    OP_REQUIRES_OK(context, context->GetAttr("member", &group_.member));
    OP_REQUIRES_OK(context, context->GetAttr("devices", &group_.devices));
    OP_REQUIRES_OK(context, context->GetAttr("segments", &segments_));
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
    mesh_ = FindMesh(number);
    OP_REQUIRES(
        context, mesh_ != nullptr,
        absl::InvalidArgumentError(absl::StrCat("mesh: there is none with number ", number)));
    OP_REQUIRES(context, group_.member >= 0 && group_.member < group_.size() && group_.devices > 0,
                absl::InvalidArgumentError("member: expected one of members"));
    OP_REQUIRES(context, width_ > 0 && width_ % group_.size() == 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "width: expected a multiple of the number of members, received ", width_)));
  }

 protected:
  absl::Status ReadKey(OpKernelContext* context, Key* key) const {
    const Tensor *first, *second;
    TF_RETURN_IF_ERROR(context->input("key", &first));
    TF_RETURN_IF_ERROR(context->input("turn", &second));
    if (first->dims() != 0 || second->dims() != 0) {
      return absl::InvalidArgumentError("expected one key and one turn");
    }
    *key = {static_cast<uint64_t>(first->scalar<int64_t>()()),
            static_cast<uint64_t>(second->scalar<int64_t>()())};
    return absl::OkStatus();
  }

  // Reads the gradients, and finds how they are divided: in the first run, as sizes stay the same.
  absl::Status Divide(OpKernelContext* context, std::vector<Tensor>* gradients,
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

  absl::Status CheckReceived(const Bucket& bucket, const Tensor& received) const {
    const int64_t expected = (group_.size() - 1) * bucket.own().elements;
    if (received.NumElements() == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("received: expected ", expected,
                                                   " elements, received ", received.NumElements()));
  }

  Mesh* mesh_ = nullptr;
  Group group_;

 private:
  absl::Status CheckSizes(const std::vector<int64_t>& sizes) const {
    bool is_good = segments_.size() == sizes.size() + 1 && segments_[0] == 0;
    for (size_t s = 0; is_good && s < sizes.size(); ++s) {
      is_good = segments_[s] + sizes[s] <= segments_[s + 1];
    }
    if (is_good) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "segments: expected offsets with room for each of the gradients");
  }

  std::vector<int64_t> segments_;
  int64_t width_ = 0;

  std::mutex mutex_;
  std::vector<int64_t> sizes_;            // guarded by mutex_
  std::shared_ptr<const Bucket> bucket_;  // guarded by mutex_
};

template <typename T>
class ScatterGramOp : public FusedOp {
 public:
  explicit ScatterGramOp(OpKernelConstruction* context) : FusedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("products", &takes_products_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Key key;
    std::vector<Tensor> gradients;
    std::shared_ptr<const Bucket> bucket;
    OP_REQUIRES_OK_ASYNC(context, ReadKey(context, &key), done);
    OP_REQUIRES_OK_ASYNC(context, Divide(context, &gradients, &bucket), done);
    Tensor received;
    const int64_t members = group_.size(), variables = gradients.size();
    const TensorShape shape({(members - 1) * bucket->own().elements});
    OP_REQUIRES_OK_ASYNC(context, kept_.Allocate(context, gradients[0].dtype(), shape, &received),
                         done);
    Tensor* gram;
    OP_REQUIRES_OK_ASYNC(
        context, context->allocate_output(0, TensorShape({variables, members, members}), &gram),
        done);
    context->set_output(1, received);

    auto run = std::make_shared<ScatterGramRun<typename ElementOf<T>::type>>(bucket, mesh_, context,
                                                                             std::move(done));
    run->gradients = std::move(gradients);
    run->received = received;
    run->gram = *gram;
    run->takes_products = takes_products_;
    run->Start(key);
  }

 private:
  bool takes_products_ = true;
  KeptMemory kept_;
};

template <typename T>
class CombineGatherOp : public FusedOp {
 public:
  explicit CombineGatherOp(OpKernelConstruction* context)
      : FusedOp(context), kept_(context->num_outputs()) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Key key;
    std::vector<Tensor> gradients;
    std::shared_ptr<const Bucket> bucket;
    OP_REQUIRES_OK_ASYNC(context, ReadKey(context, &key), done);
    OP_REQUIRES_OK_ASYNC(context, Divide(context, &gradients, &bucket), done);
    const Tensor *received, *coefficients;
    OP_REQUIRES_OK_ASYNC(context, context->input("received", &received), done);
    OP_REQUIRES_OK_ASYNC(context, context->input("coefficients", &coefficients), done);
    OP_REQUIRES_OK_ASYNC(context, CheckReceived(*bucket, *received), done);
    const TensorShape expected({static_cast<int64_t>(gradients.size()), group_.size()});
    OP_REQUIRES_ASYNC(context, coefficients->shape() == expected,
                      absl::InvalidArgumentError(absl::StrCat(
                          "coefficients: expected the shape [S, R] = ", expected.DebugString(),
                          ", received ", coefficients->shape().DebugString())),
                      done);
    std::vector<Tensor> combined(gradients.size());
    for (size_t s = 0; s < gradients.size(); ++s) {
      OP_REQUIRES_OK_ASYNC(
          context,
          kept_[s].Allocate(context, gradients[s].dtype(), gradients[s].shape(), &combined[s]),
          done);
      context->set_output(s, combined[s]);
    }

    auto run = std::make_shared<CombineGatherRun<typename ElementOf<T>::type>>(
        bucket, mesh_, context, std::move(done));
    run->gradients = std::move(gradients);
    run->combined = std::move(combined);
    run->received = *received;
    run->coefficients = *coefficients;
    run->Start(key);
  }

 private:
  std::vector<KeptMemory> kept_;  // of each gradient
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

absl::Status CombineGatherShape(InferenceContext* c) {
  for (int s = 0; s < c->num_outputs(); ++s) c->set_output(s, c->input(s));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP(TF_ADASUM_UCX_SCATTER_GRAM)
    .Input("gradients: S * T")
    .Input("key: int64")
    .Input("turn: int64")
    .Output("gram: double")
    .Output("received: T")
    .Attr("S: int >= 1")
    .Attr("T: " TF_ADASUM_TYPES)
    .Attr("segments: list(int)")
    .Attr("width: int")
    .Attr("products: bool")
    .Attr("mesh: int")
    .Attr("members: list(int)")
    .Attr("member: int")
    .Attr("devices: int")
    .SetIsDistributedCommunication()
    .SetShapeFn(ScatterGramShape)
    .Doc(R"doc(
Brings the members' shards of a bucket together, and takes the inner products of the own ones.

gradients: the gradients of the bucket, of the same shapes on all members.
key: of this call, the same for all members.
turn: of this run in the call, the same for all members.
gram: the inner products of the own shards, of shape [S, R, R]; those of all members add up to those
  of the gradients.
received: the other members' elements of the own shards.
segments: S + 1 offsets of the gradients in the bucket, which may have gaps.
width: elements of the bucket in a piece: a multiple of R.
products: whether inner products are taken; else `gram` is zero.
mesh: number of the mesh in this process.
members: the replicas of the group, in its order.
member: which of them this one is.
devices: how many replicas each worker has.
)doc");

REGISTER_OP(TF_ADASUM_UCX_COMBINE_GATHER)
    .Input("gradients: S * T")
    .Input("received: T")
    .Input("coefficients: double")
    .Input("key: int64")
    .Input("turn: int64")
    .Output("combined: S * T")
    .Attr("S: int >= 1")
    .Attr("T: " TF_ADASUM_TYPES)
    .Attr("segments: list(int)")
    .Attr("width: int")
    .Attr("mesh: int")
    .Attr("members: list(int)")
    .Attr("member: int")
    .Attr("devices: int")
    .SetIsDistributedCommunication()
    .SetShapeFn(CombineGatherShape)
    .Doc(R"doc(
Combines the own shards of a bucket, and brings all members' combinations together.

gradients: as for the scattering.
received: what it has received.
coefficients: one for each gradient and member, of shape [S, R], the same on all members.
key: of this call, the same for all members.
turn: of this run in the call, the same for all members.
combined: for each gradient the sum over i of coefficients[s, i] times that of member i.
segments: as for the scattering.
width: as for the scattering.
mesh: number of the mesh in this process.
members: the replicas of the group, in its order.
member: which of them this one is.
devices: how many replicas each worker has.
)doc");

#define TF_ADASUM_ON_CPU(OP) Name(OP).Device(tensorflow::DEVICE_CPU)
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_CPU(TF_ADASUM_UCX_SCATTER_GRAM), ScatterGramOp);
TF_ADASUM_REGISTER_KERNELS(TF_ADASUM_ON_CPU(TF_ADASUM_UCX_COMBINE_GATHER), CombineGatherOp);

}  // namespace tf_adasum
