#include "bucket_shards.h"

#include <algorithm>

#include "../cpu/chunks.h"

namespace tf_adasum {
namespace {

// The largest part; a batch of at least this size is complete. A message of this size is large
// enough to hide its fixed cost, and small enough that the arithmetic begins early.
constexpr int64_t kMaxPartElements = 16 * kChunkElements;

void Add(const Part& part, MemberShards* shards) {
  auto& batches = shards->batches;
  const auto& parts = shards->parts;
  const bool opens =
      batches.empty() ||
      parts.back().at + parts.back().size() - parts[batches.back().first].at >= kMaxPartElements;
  if (opens) batches.push_back({parts.size(), parts.size()});
  ++batches.back().last;
  shards->parts.push_back(part);
  shards->elements += part.size();
  shards->chunks += (part.size() + kChunkElements - 1) / kChunkElements;
}

}  // namespace

std::vector<MemberShards> DivideBucket(const std::vector<int64_t>& sizes,
                                       const std::vector<int64_t>& segments, int64_t width,
                                       int64_t members) {
  std::vector<MemberShards> of_members(members);
  const int64_t shard_width = width / members;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const int64_t first = segments[s], last = first + sizes[s];
    for (int64_t begin = first, end; begin < last; begin = end) {
      const int64_t shard = begin / shard_width;
      MemberShards& shards = of_members[shard % members];
      end = std::min({last, (shard + 1) * shard_width, begin + kMaxPartElements});
      Add({static_cast<int>(s), static_cast<int>(shard / members), begin - first, end - first,
           shards.elements, shards.chunks},
          &shards);
    }
  }
  return of_members;
}

}  // namespace tf_adasum
