// Divides the segments of a flat buffer into partitions of equal cost, one for each thread block.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_arguments.h"

namespace tf_adasum {

struct PartitionRequest {
  int64_t block_count;       // at most so many partitions, unless one would be too long
  int64_t small_segment;     // a shorter whole segment is the work of one warp
  bool keep_empty_segments;  // an empty segment gets a piece, too: something is written for it
};

// Immutable once made.
class Partitions {
 public:
  // `segments` are segment_count + 1 offsets, never decreasing.
  Partitions(const int64_t* segments, int64_t segment_count, const PartitionRequest& request);

  int partition_count() const { return static_cast<int>(first_piece_.size()) - 1; }
  int split_count() const { return static_cast<int>(split_pieces_.size()); }
  int slot_count() const { return slot_count_; }
  int64_t longest_partition() const;  // elements

  // The arrays of a PartitionMap, one after the other, to be copied to device memory.
  std::vector<char> Serialize() const;

  // The same arrays at their addresses in that copy.
  PartitionMap MapAt(const void* serialized) const;

 private:
  void AddPieces(const int64_t* segments, int64_t segment_count, const PartitionRequest& request);
  void AssignSlots();
  void MoveSmallPiecesBack(int64_t small_segment);
  void ListSplitSegments();

  struct Cut {
    int64_t segment;   // the first segment of which elements lie behind the cut
    int64_t position;  // the first element behind the cut
  };
  std::vector<Cut> cuts_;  // one more than partitions

  std::vector<Piece> pieces_;
  std::vector<int> first_piece_;
  std::vector<int> first_small_piece_;
  std::vector<int> split_pieces_;
  std::vector<long long> first_element_;
  int slot_count_ = 0;
};

}  // namespace tf_adasum
