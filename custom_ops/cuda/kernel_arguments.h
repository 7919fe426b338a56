// The structures that the host passes to kernels: the map from thread blocks to segments, and the
// addresses of the results.
//
// A partition is a range of consecutive elements that one block processes. All partitions have
// about the same cost. A piece is the part of one segment that lies in one partition.
//
//     segments     |  0  |            1            |2|3|   4   |
//     partitions   |        0        |            1            |
//     pieces       |  a  |     b     |      c      |d|e|   f   |
//
// Segment 1 is split: its pieces b and c each write their sums to a slot in the workspace. The
// other pieces are whole segments. The pieces of a partition are ordered: first the pieces that the
// whole block processes (a, b | c, f), then the small pieces that one warp each processes (d, e).
#pragma once

namespace tf_adasum {

struct Piece {
  long long begin;  // first element
  long long end;    // one past the last element
  int segment;
  int slot;        // of the partial sums if the segment is split, otherwise kWholeSegment
  int first_slot;  // a split segment has the slots first_slot .. first_slot + slot_count - 1
  int slot_count;
};

constexpr int kWholeSegment = -1;

struct PartitionMap {
  const Piece* pieces;
  const int* first_piece;          // [partition_count + 1]
  const int* first_small_piece;    // [partition_count]
  const int* split_pieces;         // [split_count] the first piece of each split segment
  const long long* first_element;  // [partition_count + 1]
  int partition_count;
  int split_count;
};

// The results of a pair's reduction. They are in the workspace.
struct PairResults {
  double* coefficients_S2;  // of the segments that are not split
  double* slot_sums;        // [slots][3] a·a, a·b, b·b of the pieces of split segments
};

struct GramResults {
  double* gram_SRR;
  double* slot_sums;  // [slots][R (R + 1) / 2] the lower triangles of the pieces of split segments
};

}  // namespace tf_adasum
