#include "plan.h"

#include <algorithm>
#include <cstring>

#include "thresholds.h"

namespace tf_adasum {
namespace {

// Computes the offsets of the map's arrays in one allocation. Each offset is a multiple of 16.
struct Layout {
  template <typename T>
  int64_t Add(const std::vector<T>& array) {
    constexpr int64_t kAlignment = 16;
    const int64_t at = size;
    size += (array.size() * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  int64_t size = 0;
};

template <typename T>
void CopyTo(std::vector<char>* bytes, int64_t at, const std::vector<T>& array) {
  if (!array.empty()) std::memcpy(bytes->data() + at, array.data(), array.size() * sizeof(T));
}

int64_t RoundDown(int64_t value, int64_t multiple) { return value / multiple * multiple; }

int64_t DivideRoundingUp(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

bool IsSplit(const Piece& piece) { return piece.slot != kWholeSegment; }

}  // namespace

// The cost of a segment is its length plus kSegmentCost. For P partitions, p / P of the total cost
// should lie before cut p. Each cut is then moved to a nearby position at which a cut is allowed.
//
// Example: segments of 1000, 6000 and 1000 elements, P = 2, total cost 8000 + 3·256 = 8768. The cut
// belongs at cost 4384, which is element 1000 + (4384 - 1256 - 256) = 3872. Alignment moves it to
// 3840.
Partitions::Partitions(const int64_t* segments, int64_t segment_count,
                       const PartitionRequest& request) {
  const auto cost = [&](int64_t s) -> int64_t {
    const int64_t length = segments[s + 1] - segments[s];
    return length > 0 || request.keep_empty_segments ? length + kSegmentCost : 0;
  };
  int64_t total = 0;
  for (int64_t s = 0; s < segment_count; ++s) total += cost(s);
  first_piece_.push_back(0);
  if (total == 0) {
    first_element_.push_back(0);
    return;
  }

  const int64_t useful = DivideRoundingUp(total, kMinPartitionCost);
  const int64_t needed = DivideRoundingUp(total, kMaxPartitionLength);
  const int64_t count = std::max(std::min(request.block_count, useful), needed);
  cuts_.push_back({0, 0});
  int64_t s = 0;
  int64_t cost_before = 0;  // cost of the segments before s
  for (int64_t p = 1; p < count; ++p) {
    const int64_t target = total / count * p + total % count * p / count;
    while (cost_before + cost(s) <= target) cost_before += cost(s++);
    const int64_t begin = segments[s];
    const int64_t end = segments[s + 1];
    const int64_t inside = std::max<int64_t>(target - cost_before - kSegmentCost, 0);
    Cut cut = {s, RoundDown(begin + inside, kCutAlignment)};
    if (cut.position - begin < kMinPieceLength) {
      cut.position = begin;
    } else if (end - cut.position < kMinPieceLength) {
      cut = {s + 1, end};
    }
    const Cut& last = cuts_.back();
    if (cut.segment > last.segment || cut.position > last.position) cuts_.push_back(cut);
  }
  cuts_.push_back({segment_count, segments[segment_count]});

  AddPieces(segments, segment_count, request);
  AssignSlots();
  MoveSmallPiecesBack(request.small_segment);
  ListSplitSegments();
}

int64_t Partitions::longest_partition() const {
  int64_t longest = 0;
  for (size_t p = 0; p + 1 < first_element_.size(); ++p) {
    longest = std::max<int64_t>(longest, first_element_[p + 1] - first_element_[p]);
  }
  return longest;
}

void Partitions::AddPieces(const int64_t* segments, int64_t segment_count,
                           const PartitionRequest& request) {
  for (size_t p = 0; p + 1 < cuts_.size(); ++p) {
    const Cut from = cuts_[p];
    const Cut to = cuts_[p + 1];
    first_element_.push_back(from.position);
    for (int64_t s = from.segment; s <= to.segment && s < segment_count; ++s) {
      const int64_t begin = std::max(segments[s], from.position);
      const int64_t end = std::min(segments[s + 1], to.position);
      const bool empty_segment = segments[s] == segments[s + 1];
      if (begin < end || (empty_segment && request.keep_empty_segments && s < to.segment)) {
        pieces_.push_back({begin, end, static_cast<int>(s), kWholeSegment, 0, 0});
      }
    }
    first_piece_.push_back(static_cast<int>(pieces_.size()));
  }
  first_element_.push_back(cuts_.back().position);
}

// At this point, the pieces are still in the order of their elements, so the pieces of one segment
// are next to each other.
void Partitions::AssignSlots() {
  for (size_t first = 0; first < pieces_.size();) {
    size_t last = first + 1;
    while (last < pieces_.size() && pieces_[last].segment == pieces_[first].segment) ++last;
    const int count = static_cast<int>(last - first);
    if (count > 1) {
      for (size_t k = first; k < last; ++k) {
        pieces_[k].slot = slot_count_ + static_cast<int>(k - first);
        pieces_[k].first_slot = slot_count_;
        pieces_[k].slot_count = count;
      }
      slot_count_ += count;
    }
    first = last;
  }
}

void Partitions::MoveSmallPiecesBack(int64_t small_segment) {
  for (int p = 0; p < partition_count(); ++p) {
    const auto begin = pieces_.begin() + first_piece_[p];
    const auto end = pieces_.begin() + first_piece_[p + 1];
    const auto small = std::stable_partition(begin, end, [small_segment](const Piece& piece) {
      return IsSplit(piece) || piece.end - piece.begin >= small_segment;
    });
    first_small_piece_.push_back(static_cast<int>(small - pieces_.begin()));
  }
}

void Partitions::ListSplitSegments() {
  for (size_t k = 0; k < pieces_.size(); ++k) {
    if (IsSplit(pieces_[k]) && pieces_[k].slot == pieces_[k].first_slot) {
      split_pieces_.push_back(static_cast<int>(k));
    }
  }
}

std::vector<char> Partitions::Serialize() const {
  Layout layout;
  const int64_t pieces = layout.Add(pieces_);
  const int64_t first_piece = layout.Add(first_piece_);
  const int64_t first_small_piece = layout.Add(first_small_piece_);
  const int64_t split_pieces = layout.Add(split_pieces_);
  const int64_t first_element = layout.Add(first_element_);
  std::vector<char> bytes(layout.size, 0);
  CopyTo(&bytes, pieces, pieces_);
  CopyTo(&bytes, first_piece, first_piece_);
  CopyTo(&bytes, first_small_piece, first_small_piece_);
  CopyTo(&bytes, split_pieces, split_pieces_);
  CopyTo(&bytes, first_element, first_element_);
  return bytes;
}

PartitionMap Partitions::MapAt(const void* serialized) const {
  const char* bytes = static_cast<const char*>(serialized);
  Layout layout;
  PartitionMap map;
  map.pieces = reinterpret_cast<const Piece*>(bytes + layout.Add(pieces_));
  map.first_piece = reinterpret_cast<const int*>(bytes + layout.Add(first_piece_));
  map.first_small_piece = reinterpret_cast<const int*>(bytes + layout.Add(first_small_piece_));
  map.split_pieces = reinterpret_cast<const int*>(bytes + layout.Add(split_pieces_));
  map.first_element = reinterpret_cast<const long long*>(bytes + layout.Add(first_element_));
  map.partition_count = partition_count();
  map.split_count = split_count();
  return map;
}

}  // namespace tf_adasum
