// The structures that the host passes to kernels: the map from thread blocks to segments, and where
// results go.
//
// A partition is a run of consecutive elements of equal cost, the work of one block. A piece is the
// part of one segment that one partition owns.
//
//     segments     |  0  |            1            |2|3|   4   |
//     partitions   |        0        |            1            |
//     pieces       |  a  |     b     |      c      |d|e|   f   |
//
// b and c are split: each leaves its sums in a slot of the workspace. The others are whole
// segments. Inside a partition, the pieces that a whole block works on come first (a, b | c, f),
// then the small ones that take one warp each (d, e).
#pragma once

namespace tf_adasum {

struct Piece {
  long long begin;  // first element
  long long end;    // one past the last element
  int segment;
  int slot;        // where the partial sums of a split segment go; kWholeSegment for others
  int first_slot;  // the split segment's slots are first_slot .. first_slot + slot_count - 1
  int slot_count;
};

constexpr int kWholeSegment = -1;

struct PartitionMap {
  const Piece* pieces;
  const int* first_piece;          // [partition_count + 1]
  const int* first_small_piece;    // [partition_count]
  const int* split_pieces;         // [split_count] one piece of each split segment
  const long long* first_element;  // [partition_count + 1]
  int partition_count;
  int split_count;
};

// What the reduction of a pair leaves, in the workspace.
struct PairResults {
  double* coefficients_S2;  // of segments that one piece covers
  double* slot_sums;        // [slots][3] a·a, a·b, b·b of the pieces of the others
};

struct GramResults {
  double* gram_SRR;
  double* slot_sums;  // [slots][R (R + 1) / 2] the lower triangles of the pieces of split segments
};

}  // namespace tf_adasum
