// What the three TensorFlow kernels share: checked arguments, raw rows, and TensorFlow's own
// threads.
#ifndef TF_ADASUM_KERNELS_OP_ARGUMENTS_H_
#define TF_ADASUM_KERNELS_OP_ARGUMENTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "../cpu/chunks.h"
#include "op_names.h"
#include "../cpu/element_types.h"
#include "../cpu/huge_pages.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tf_adasum {

// The element type of the numeric code that has the bits of TensorFlow's type T.
template <typename T>
struct ElementOf {
  using type = T;
};
template <>
struct ElementOf<Eigen::half> {
  using type = Half;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using type = BFloat16;
};

template <typename T>
const typename ElementOf<T>::type* Elements(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<const typename ElementOf<T>::type*>(tensor.flat<T>().data());
}

template <typename T>
typename ElementOf<T>::type* MutableElements(tensorflow::Tensor* tensor) {
  PreferHugePages(tensor->data(), tensor->TotalBytes());
  return reinterpret_cast<typename ElementOf<T>::type*>(tensor->flat<T>().data());
}

// The addresses of the rows of a [R, N] tensor.
template <typename T>
std::vector<const typename ElementOf<T>::type*> Rows(const tensorflow::Tensor& rows_RN) {
  std::vector<const typename ElementOf<T>::type*> rows_R(rows_RN.dim_size(0));
  for (size_t i = 0; i < rows_R.size(); ++i) {
    rows_R[i] = Elements<T>(rows_RN) + i * rows_RN.dim_size(1);
  }
  return rows_R;
}

inline absl::Status CheckRows(const tensorflow::Tensor& rows) {
  if (rows.dims() != 2 || rows.dim_size(0) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows: expected the shape [R, N] with R >= 1, received ", rows.shape().DebugString()));
  }
  return absl::OkStatus();
}

// `segments` are S + 1 offsets: 0 first, `element_count` last, never decreasing.
inline absl::Status CheckSegments(const tensorflow::Tensor& segments, int64_t element_count) {
  if (segments.dims() != 1 || segments.dim_size(0) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segments: expected the shape [S + 1], received ", segments.shape().DebugString()));
  }
  const auto offsets = segments.vec<int64_t>();
  const int64_t segment_count = offsets.size() - 1;
  if (offsets(0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segments: expected the first offset to be 0, received ", offsets(0)));
  }
  for (int64_t s = 0; s < segment_count; ++s) {
    if (offsets(s + 1) < offsets(s)) {
      return absl::InvalidArgumentError(
          absl::StrCat("segments: expected non-decreasing offsets, received ", offsets(s),
                       " at index ", s, " followed by ", offsets(s + 1)));
    }
  }
  if (offsets(segment_count) != element_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("segments: expected the last offset to be the number of elements, ",
                     element_count, ", received ", offsets(segment_count)));
  }
  return absl::OkStatus();
}

inline absl::Status CheckPair(const tensorflow::Tensor& a, const tensorflow::Tensor& b) {
  if (a.shape() != b.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("b: expected the shape of a, ",
                                                   a.shape().DebugString(), ", received ",
                                                   b.shape().DebugString()));
  }
  return absl::OkStatus();
}

// One coefficient for each segment and row; rows and segments have been checked.
inline absl::Status CheckCoefficients(const tensorflow::Tensor& coefficients,
                                      const tensorflow::Tensor& segments,
                                      const tensorflow::Tensor& rows) {
  const tensorflow::TensorShape expected({segments.dim_size(0) - 1, rows.dim_size(0)});
  if (coefficients.shape() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coefficients: expected the shape [S, R] = ", expected.DebugString(), ", received ",
        coefficients.shape().DebugString()));
  }
  return absl::OkStatus();
}

// TensorFlow's worker threads flush subnormal numbers to zero, the thread that calls the kernel may
// not. Results must not depend on the thread, and half-precision gradients use subnormals: keep
// them everywhere.
using KeepSubnormals = tensorflow::port::ScopedDontFlushDenormal;

inline ParallelFor OnWorkerThreadsOf(tensorflow::OpKernelContext* context) {
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  return [workers](int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& work) {
    tensorflow::Shard(workers->num_threads, workers->workers, total, cost,
                      [&work](int64_t first, int64_t last) {
                        const KeepSubnormals keep_subnormals;
                        work(first, last);
                      });
  };
}

}  // namespace tf_adasum

// Registers KERNEL<T> for every T on the CPU.
#define TF_ADASUM_REGISTER_CPU(OP, KERNEL, T) \
  REGISTER_KERNEL_BUILDER(                    \
      Name(OP).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), tf_adasum::KERNEL<T>)
#define TF_ADASUM_REGISTER_CPU_KERNELS(OP, KERNEL)      \
  TF_ADASUM_REGISTER_CPU(OP, KERNEL, float);            \
  TF_ADASUM_REGISTER_CPU(OP, KERNEL, double);           \
  TF_ADASUM_REGISTER_CPU(OP, KERNEL, Eigen::half);      \
  TF_ADASUM_REGISTER_CPU(OP, KERNEL, Eigen::bfloat16)

#endif  // TF_ADASUM_KERNELS_OP_ARGUMENTS_H_
