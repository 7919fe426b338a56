// Divides a bucket of gradients among the members of a group, without packing it into a buffer.
//
// Elements are at the same offsets as in the flat buffer of a packed bucket: gradient s begins at
// `segments[s]`, and zeros fill the buffer up to `segments[s + 1]`. The bucket is cut into pieces
// of `width` elements, and each piece into R shards. Member i combines shard i of every piece. The
// zeros are not sent.
//
//     pieces     |---------- 0 ----------|---------- 1 ----------|
//     shards     |-----0-----|-----1-----|-----0-----|-----1-----|        R = 2
//     gradients  |---0---|--------------1--------------|---2---|..
//     parts      [       ][  ]           [          ]                     of member 0
//                            [           ]           [ ][      ]          of member 1
//
// A part is the content of one message: elements of one gradient in one shard. A batch is a range
// of parts that are combined together.
//
// A shard is cut into the same chunks as in a packed bucket. So the sums of the chunks are the
// same, and they are added in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_adasum {

struct Part {
  int gradient;
  int piece;
  int64_t begin, end;   // elements of the gradient
  int64_t at;           // offset of the part in all elements of the member
  int64_t first_chunk;  // index of the part's first chunk in all chunks of the member

  int64_t size() const { return end - begin; }
};

// The parts with the indices first <= i < last.
struct Batch {
  size_t first, last;
};

// The shards that one member combines.
struct MemberShards {
  std::vector<Part> parts;
  std::vector<Batch> batches;
  int64_t elements = 0;
  int64_t chunks = 0;
};

// Returns the shards of each member. `sizes` are the sizes of the gradients, without the zeros
// after them.
std::vector<MemberShards> DivideBucket(const std::vector<int64_t>& sizes,
                                       const std::vector<int64_t>& segments, int64_t width,
                                       int64_t members);

}  // namespace tf_adasum
