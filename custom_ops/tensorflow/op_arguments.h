// Checks the arguments of the ops on CPUs and on GPUs. Error messages contain the expected and the
// received values.
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_adasum {

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

// Checks that there is one coefficient for each segment and row. The caller has already checked the
// rows and segments.
inline absl::Status CheckCoefficients(const tensorflow::Tensor& coefficients,
                                      const tensorflow::Tensor& segments,
                                      const tensorflow::Tensor& rows) {
  const tensorflow::TensorShape expected({segments.dim_size(0) - 1, rows.dim_size(0)});
  if (coefficients.shape() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("coefficients: expected the shape [S, R] = ", expected.DebugString(),
                     ", received ", coefficients.shape().DebugString()));
  }
  return absl::OkStatus();
}

}  // namespace tf_adasum
