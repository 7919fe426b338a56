// The elements of a tensor, with the element types of the numeric code.
#pragma once

#include "../cpu/element_types.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/denormal.h"

namespace tf_adasum {

// The element type of the numeric code that has the same bits as TensorFlow's type T.
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

// TensorFlow's worker threads flush subnormal numbers to zero, but the thread that calls the kernel
// may keep them. Results must not depend on the thread, and half-precision gradients contain
// subnormal numbers. So every thread has to keep them.
using KeepSubnormals = tensorflow::port::ScopedDontFlushDenormal;

}  // namespace tf_adasum
