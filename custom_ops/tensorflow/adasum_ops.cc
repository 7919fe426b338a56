// The interface of the three ops: names, types, shapes and documentation.
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
#include "registration.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_adasum {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// `segments` holds S + 1 offsets.
absl::Status SegmentCount(InferenceContext* c, int input, DimensionHandle* segment_count) {
  ShapeHandle segments;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 1, &segments));
  return c->Subtract(c->Dim(segments, 0), 1, segment_count);
}

absl::Status PairwiseCombineShape(InferenceContext* c) {
  ShapeHandle combined;
  TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &combined));
  DimensionHandle segment_count;
  TF_RETURN_IF_ERROR(SegmentCount(c, 2, &segment_count));
  c->set_output(0, combined);
  return absl::OkStatus();
}

absl::Status SegmentGramShape(InferenceContext* c) {
  ShapeHandle rows_RN;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows_RN));
  DimensionHandle segment_count;
  TF_RETURN_IF_ERROR(SegmentCount(c, 1, &segment_count));
  const DimensionHandle row_count = c->Dim(rows_RN, 0);
  c->set_output(0, c->MakeShape({segment_count, row_count, row_count}));
  return absl::OkStatus();
}

absl::Status SegmentWeightedSumShape(InferenceContext* c) {
  ShapeHandle rows_RN;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows_RN));
  ShapeHandle coefficients_SR;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &coefficients_SR));
  DimensionHandle segment_count;
  TF_RETURN_IF_ERROR(SegmentCount(c, 2, &segment_count));
  DimensionHandle merged;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(coefficients_SR, 0), segment_count, &merged));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(coefficients_SR, 1), c->Dim(rows_RN, 0), &merged));
  c->set_output(0, c->Vector(c->Dim(rows_RN, 1)));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP(TF_ADASUM_PAIRWISE_COMBINE)
    .Input("a: T")
    .Input("b: T")
    .Input("segments: int64")
    .Output("combined: T")
    .Attr("T: " TF_ADASUM_TYPES)
    .SetShapeFn(PairwiseCombineShape)
    .Doc(R"doc(
Combines two tensors by Adasum, segment by segment.

For the elements of each segment:

  combined = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b

Orthogonal segments are added, equal ones averaged. A squared norm below 1.4917e-154 counts as
zero, and its coefficient is 1. A NaN or Inf in a segment of either tensor makes that whole segment
of the result NaN.

a: The first tensor, of any shape.
b: The second tensor, of the same shape.
segments: S + 1 non-decreasing offsets into the flattened tensors; the first is 0, the last their
  size.
combined: The combination, of the shape of `a`.
)doc");

REGISTER_OP(TF_ADASUM_SEGMENT_GRAM)
    .Input("rows: T")
    .Input("segments: int64")
    .Output("gram: double")
    .Attr("T: " TF_ADASUM_TYPES)
    .SetShapeFn(SegmentGramShape)
    .Doc(R"doc(
Computes the inner products of all pairs of rows, segment by segment.

  gram[s, i, j] = sum over the elements k of segment s of rows[i, k] * rows[j, k]

On CPUs products and sums are formed in double, in an order that depends on `segments` alone. On
GPUs products of types up to 32 bits are formed in float.

rows: R vectors of N elements, of shape [R, N], R >= 1.
segments: S + 1 non-decreasing offsets into a row; the first is 0, the last is N.
gram: The symmetric matrices, of shape [S, R, R]; zeros for an empty segment.
)doc");

REGISTER_OP(TF_ADASUM_SEGMENT_WEIGHTED_SUM)
    .Input("rows: T")
    .Input("coefficients: double")
    .Input("segments: int64")
    .Output("combined: T")
    .Attr("T: " TF_ADASUM_TYPES)
    .SetShapeFn(SegmentWeightedSumShape)
    .Doc(R"doc(
Computes a linear combination of the rows, segment by segment.

  combined[k] = sum over i of coefficients[s, i] * rows[i, k]     for the elements k of segment s

The terms are added in row order and the sum is rounded once: in double, but on GPUs in float for
types up to 32 bits.

rows: R vectors of N elements, of shape [R, N], R >= 1.
coefficients: One coefficient for each segment and row, of shape [S, R].
segments: S + 1 non-decreasing offsets into a row; the first is 0, the last is N.
combined: The combination, of shape [N].
)doc");

}  // namespace tf_adasum
