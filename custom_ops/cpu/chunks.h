// Divides the segments of a flat buffer into chunks, the units of work that are distributed over
// threads.
//
// The chunks depend only on the segments, never on the number of threads. Each chunk has its own
// sums, which are added in chunk order. So the same inputs give the same bits with one thread and
// with sixty-four.
//
// Example, with chunks of at most 4 elements:
//
//     segments = [0, 3, 3, 13]      three segments; the second one is empty
//     chunks   = (0: 0..3), (2: 3..7), (2: 7..11), (2: 11..13)
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace tf_adasum {

// Large enough to hide the cost of starting work on a thread, and small enough to distribute a
// single segment over several threads.
constexpr int64_t kChunkElements = 16384;

struct Chunk {
  int64_t segment;
  int64_t begin;  // first element
  int64_t end;    // one past the last element
};

inline std::vector<Chunk> CutIntoChunks(const int64_t* segments, int64_t segment_count) {
  std::vector<Chunk> chunks;
  for (int64_t s = 0; s < segment_count; ++s) {
    const int64_t segment_end = segments[s + 1];
    for (int64_t begin = segments[s]; begin < segment_end; begin += kChunkElements) {
      chunks.push_back({s, begin, std::min(begin + kChunkElements, segment_end)});
    }
  }
  return chunks;
}

// Calls work(first, last) on disjoint ranges that cover [0, total), from any number of threads, and
// returns when all calls have returned. `cost` is the approximate number of CPU cycles of one unit
// of work.
using ParallelFor = std::function<void(int64_t total, int64_t cost,
                                       const std::function<void(int64_t, int64_t)>& work)>;

// The average number of elements in a chunk, to estimate costs.
inline int64_t AverageElements(const std::vector<Chunk>& chunks) {
  return chunks.empty() ? 0 : chunks.back().end / static_cast<int64_t>(chunks.size()) + 1;
}

}  // namespace tf_adasum
