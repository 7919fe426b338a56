// The names of the ops, their element types, and a macro that registers a kernel for all element
// types.
#pragma once

// A test builds the ops a second time, with another prefix.
#ifndef TF_ADASUM_OP_PREFIX
#define TF_ADASUM_OP_PREFIX "TfAdasum"
#endif

#define TF_ADASUM_PAIRWISE_COMBINE TF_ADASUM_OP_PREFIX "PairwiseCombine"
#define TF_ADASUM_SEGMENT_GRAM TF_ADASUM_OP_PREFIX "SegmentGram"
#define TF_ADASUM_SEGMENT_WEIGHTED_SUM TF_ADASUM_OP_PREFIX "SegmentWeightedSum"
#define TF_ADASUM_UCX_ALL_TO_ALL TF_ADASUM_OP_PREFIX "UcxAllToAll"
#define TF_ADASUM_UCX_ALL_GATHER TF_ADASUM_OP_PREFIX "UcxAllGather"
#define TF_ADASUM_UCX_SCATTER_GRAM TF_ADASUM_OP_PREFIX "UcxScatterGram"
#define TF_ADASUM_UCX_COMBINE_GATHER TF_ADASUM_OP_PREFIX "UcxCombineGather"

#define TF_ADASUM_TYPES "{float, double, half, bfloat16}"

// Registers KERNEL<T> for each element type. BUILDER selects the op and the device, e.g.
// Name(OP).Device(DEVICE).
#define TF_ADASUM_REGISTER_KERNELS(BUILDER, KERNEL)        \
  TF_ADASUM_REGISTER_KERNEL(BUILDER, KERNEL, float);       \
  TF_ADASUM_REGISTER_KERNEL(BUILDER, KERNEL, double);      \
  TF_ADASUM_REGISTER_KERNEL(BUILDER, KERNEL, Eigen::half); \
  TF_ADASUM_REGISTER_KERNEL(BUILDER, KERNEL, Eigen::bfloat16)
#define TF_ADASUM_REGISTER_KERNEL(BUILDER, KERNEL, T) \
  REGISTER_KERNEL_BUILDER(BUILDER.TypeConstraint<T>("T"), KERNEL<T>)
