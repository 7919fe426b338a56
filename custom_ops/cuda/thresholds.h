// Every size that decides how work is divided, in one place: block sizes, thresholds between
// algorithms, grains of the partition. Host and device code include it.
#pragma once

namespace tf_adasum {

// ---- blocks ------------------------------------------------------------------------------------

constexpr int kWarpThreads = 32;
constexpr int kBlockThreads = 256;
constexpr int kBlockWarps = kBlockThreads / kWarpThreads;

// Blocks of streaming kernels that share a multiprocessor: 1024 threads with 64 registers each.
constexpr int kStreamingBlocks = 4;

// Partitions of a weighted sum for each multiprocessor. No partition waits for another, and many
// small partitions, started in order, read memory almost sequentially.
constexpr int kWeightedSumPartitions = 32;

// The single-pass kernel has one block per multiprocessor, which owns all of its shared memory.
constexpr int kSinglePassThreads = 512;

// What that kernel declares beside its dynamic shared memory (384 bytes), and the driver reserves
// (1 KiB).
constexpr int kSinglePassStaticBytes = 2048;

// What one instruction loads, where addresses are multiples of it.
constexpr int kPacketBytes = 16;

// ---- partition ---------------------------------------------------------------------------------

// The fixed cost of a segment (its reduction, its coefficients), in elements.
constexpr long long kSegmentCost = 256;

// A shorter segment is the work of one warp, a longer one of a block.
constexpr long long kSmallSegment = 4096;

// Cuts inside a segment lie at multiples of this, so that they never split a 16-byte packet.
constexpr long long kCutAlignment = 64;

// No cut leaves a piece shorter than this on either side.
constexpr long long kShortestPiece = 1024;

// No partition is cheaper than this while another block waits.
constexpr long long kLeastPartitionCost = 2048;

// Indices inside a piece are 32 bits wide: longer partitions are cut even if that needs more blocks
// than asked for.
constexpr long long kLongestPartition = 1LL << 30;

// ---- accuracy ----------------------------------------------------------------------------------

// A float adds at most so many products before a double takes over. Relative error of the inner
// sum: at most 32·2^-24 = 2e-6, typically a tenth of it, and the signs differ from one sum to the
// next.
constexpr int kInnerProducts = 32;

// ---- Gram matrix -------------------------------------------------------------------------------

// The kernels hold 2, 4, 8 or 16 rows in registers. More rows are handled in tiles of G, each with
// this number of rows on a side.
constexpr int kMostRowsFloat32 = 16;
constexpr int kTileRowsFma = 8;
constexpr int kTileRowsMma = 16;

// Blocks of each kernel that share a multiprocessor, as its registers allow.
constexpr int kFma2Blocks = 4;
constexpr int kFma4Blocks = 2;
constexpr int kFma8Blocks = 1;
constexpr int kFma16Blocks = 1;
constexpr int kMma8Blocks = 3;
constexpr int kMma16Blocks = 2;
constexpr int kMma16BelowBlocks = 1;

// Fewer rows would leave most of a tensor core's tile empty, and load too few packets at once.
constexpr int kLeastRowsMma = 5;

// Tensor cores multiply both 16-bit types from this compute capability on.
constexpr int kMmaCapability = 80;

// Indices of rows and their products are 32 bits wide.
constexpr int kMostRows = 32767;

}  // namespace tf_adasum
