// How a bucket of gradients is divided among the members of a group, without a buffer that holds it.
//
// The bucket is numbered as the flat buffer that the plain way packs: gradient s begins at
// `segments[s]`, zeros fill it up to `segments[s + 1]`, and the whole is cut into pieces of `width`
// elements, each into R shards. Member i combines shard i of every piece. Zeros do not travel.
//
//     pieces     |---------- 0 ----------|---------- 1 ----------|
//     shards     |-----0-----|-----1-----|-----0-----|-----1-----|        R = 2
//     gradients  |---0---|--------------1--------------|---2---|..
//     parts      [       ][  ]           [          ]                     of member 0
//                            [           ]           [ ][      ]          of member 1
//
// A part is what a message carries: elements of one gradient in one shard. Batches are parts that
// are combined at once.
//
// The chunks of a shard are cut where those of a packed one are: the same sums, in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_adasum {

struct Part {
  int gradient;
  int piece;
  int64_t begin, end;   // elements of the gradient
  int64_t at;           // where it begins among all elements of the member
  int64_t first_chunk;  // among all chunks of the member

  int64_t size() const { return end - begin; }
};

// Parts first <= i < last.
struct Batch {
  size_t first, last;
};

// What one member combines.
struct MemberShards {
  std::vector<Part> parts;
  std::vector<Batch> batches;
  int64_t elements = 0;
  int64_t chunks = 0;
};

// One for each of `members` members. `sizes` are the gradients' own, without the zeros behind them.
std::vector<MemberShards> DivideBucket(const std::vector<int64_t>& sizes,
                                       const std::vector<int64_t>& segments, int64_t width,
                                       int64_t members);

}  // namespace tf_adasum
