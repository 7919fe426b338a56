// The elements of a tensor as the numeric code has them.
#pragma once

#include "../cpu/element_types.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/denormal.h"

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

// TensorFlow's worker threads flush subnormal numbers to zero, the thread that calls the kernel may
// not. Results must not depend on the thread, and half-precision gradients use subnormals: keep
// them everywhere.
using KeepSubnormals = tensorflow::port::ScopedDontFlushDenormal;

}  // namespace tf_adasum
