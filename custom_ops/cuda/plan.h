// Divides the segments of a flat buffer into partitions of about equal cost, one per thread block.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_arguments.h"

namespace tf_adasum {

struct PartitionRequest {
  int64_t block_count;       // at most this many partitions, unless one would be too long
  int64_t small_segment;     // one warp processes a whole segment shorter than this
  bool keep_empty_segments;  // give empty segments a piece, because they have a result
};

// The partitions of one flat buffer. An object never changes after construction.
class Partitions {
 public:
  // `segments` are segment_count + 1 offsets that never decrease.
  Partitions(const int64_t* segments, int64_t segment_count, const PartitionRequest& request);

  int partition_count() const { return static_cast<int>(first_piece_.size()) - 1; }
  int split_count() const { return static_cast<int>(split_pieces_.size()); }
  int slot_count() const { return slot_count_; }
  int64_t longest_partition() const;  // in elements

  // Returns the arrays of a PartitionMap, one after the other. The caller copies them to device
  // memory.
  std::vector<char> Serialize() const;

  // Returns a PartitionMap that points to the arrays in the copy at `serialized`.
  PartitionMap MapAt(const void* serialized) const;

 private:
  void AddPieces(const int64_t* segments, int64_t segment_count, const PartitionRequest& request);
  void AssignSlots();
  void MoveSmallPiecesBack(int64_t small_segment);
  void ListSplitSegments();

  struct Cut {
    int64_t segment;   // first segment that has elements after the cut
    int64_t position;  // first element after the cut
  };
  std::vector<Cut> cuts_;  // partition_count + 1 cuts

  std::vector<Piece> pieces_;
  std::vector<int> first_piece_;
  std::vector<int> first_small_piece_;
  std::vector<int> split_pieces_;
  std::vector<long long> first_element_;
  int slot_count_ = 0;
};

}  // namespace tf_adasum
